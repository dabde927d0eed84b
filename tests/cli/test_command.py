"""What all commands share: help, errors in one sentence, and what happens after Ctrl-C or a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import surefoot
from surefoot import __version__
from surefoot.lab.store import open_folder, read_metrics, read_runs

QUITS = "import sys\nsys.exit(3)\n"


def test_it_shows_its_version() -> None:
    assert surefoot("--version").output.split() == ["surefoot", __version__]


def test_help_needs_no_torch() -> None:
    code = "import sys; from surefoot.cli import main; sys.argv = ['surefoot', '--help']\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "digits-mpl"), "there is no task 'digits-mpl'"),
        (("compare", "digits-lr", "-o", "adma"), "unknown optimizer 'adma'; did you mean"),
        (("compare", "digits-lr", "-o", "adam:lr"), "cannot read the options of 'adam:lr'; give lr a value"),
        (("compare", "digits-lr", "-o", "adams:eta=-1"), "'adams:eta=-1': Invalid eta value: -1"),
        (("compare", "digits-lr", "-o", "adam:speed=2"), "'adam:speed=2': "),
        (("compare", "digits-lr", "--lr", "-1"), "'adam': Invalid learning rate: -1"),
        (("compare", "digits-lr", "--device", "abacus"), "the device 'abacus' cannot be used here; take cpu"),
        (("tune", "digits-lr", "-o", "adams", "--eta", "abc"), "cannot read eta='abc'"),
        (("report", "no/such/folder"), "no/such/folder does not exist"),
        (("runs", "no/such/folder"), "no/such/folder is not a folder"),
        (("fork", "digits-lr", "--at", 1, "--state", "warm"), "'keep' or 'fresh', got 'warm'"),
        (("compare", "digits-lr", "--device", "meta"), "the device 'meta' cannot be used here; take cpu"),
        (("tune", "digits-lr", "--device", "meta"), "the device 'meta' cannot be used here; take cpu"),
        (("compare", "digits-lr", "-o", "adam:lr=None"), "'adam:lr=None': lr must be a number, not None"),
        (("compare", "digits-lr", "-o", "os.path.join"), "'os.path.join' made no optimizer (TypeError: "),
        (("compare", "digits-lr", "-o", "quits.py:Mine"), "quits.py could not be imported (SystemExit: 3)"),
        (("compare", "quits.py"), "quits.py could not be imported (SystemExit: 3)"),
        (("compare", "."), ". is a folder; give a Python file with a Task in it"),
        (("compare", "notes.txt"), "notes.txt is not a .py file; give a Python file with a Task in it"),
        (("tune", "digits-lr", "--out", "notes.txt"), "notes.txt cannot be used (File exists); give another path"),
        *(
            ((command, "digits-lr", *more, "--report", place), message)
            for command, more in (("compare", ()), ("fork", ("--at", 0)), ("tune", ()))
            for place, message in (
                ("folder/", "folder is a folder, and the report is a file; name one, such as folder/report.html"),
                ("notes.txt/r.html", "notes.txt is a file, not a folder; name another place"),
                ("/proc/r.html", "the report /proc/r.html cannot be written: /proc takes no file"),
            )
        ),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quits.py").write_text(QUITS)
    (tmp_path / "notes.txt").write_text("not Python")
    (tmp_path / "folder").mkdir()
    done = surefoot(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.output
    assert not (tmp_path / "runs").exists()  # no run folder of a run that could never be


def test_an_empty_out_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = surefoot("compare", "digits-lr", "--seeds", 1, "--epochs", 1, "--out", "")
    assert done.exit_code == 2
    assert "out must be the folder for the runs, such as 'runs', got ''" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_address_is_for_ray_only(tmp_path: Path) -> None:
    ran = surefoot("compare", "digits-lr", "--address", "somewhere:6379", "--out", tmp_path)
    assert ran.exit_code == 2
    assert "--address somewhere:6379 is for a Ray cluster; add --executor ray, or leave it out" in ran.output


def test_after_a_kill_its_workers_end_and_the_runs_are_free(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["compare", str(mine), "-o", "sgd", "--seeds", "2", "--epochs", "200000", "--out", str(out)]
    program = [sys.executable, "-c", "from surefoot.cli import main; main()", *command, "--jobs", "2", "-q"]
    process = subprocess.Popen(program)
    while not all(sizes := recorded(out)) or len(sizes) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    for path in out.rglob("metrics.jsonl"):
        with open_folder(path.parent):  # waits for ever if a worker lived on
            assert read_metrics(path)[0]


def recorded(out: Path) -> list[int]:
    return [path.stat().st_size for path in out.rglob("metrics.jsonl")]


def test_after_ctrl_c_it_says_how_to_continue_and_continues(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["compare", str(mine), "-o", "sgd", "--seeds", "2", "--epochs", "200000", "--out", str(out)]
    program = [sys.executable, "-c", "from surefoot.cli import main; main()", *command, "--jobs", "2"]
    process = subprocess.Popen(
        program,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where these tests run in the background, Ctrl-C is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while not all(sizes := recorded(out)) or len(sizes) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers alike
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "everything so far is kept. Go on with: surefoot compare" in errors
    assert "Traceback" not in errors
    before = {path: path.read_text() for path in out.rglob("metrics.jsonl")}
    fewer = ["2" if argument == "200000" else argument for argument in command]
    assert surefoot(*fewer).exit_code == 0
    assert all(path.read_text().startswith(text[: text.rindex("\n")]) for path, text in before.items())
    assert all(len(run.epochs) >= 2 for run in read_runs(out))


COMMAND = [sys.executable, "-c", "from surefoot.cli import main; main()"]


def start(arguments: list[object], **options: object) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, with streams of its own."""
    given = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "timeout": 120, **options}
    return subprocess.run([*COMMAND, *map(str, arguments)], check=False, **given)  # type: ignore[call-overload]


def short(mine: Path, out: Path) -> list[object]:
    return ["compare", mine, "-o", "adam", "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", out, "-q"]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_with_few_characters_gets_similar_ones(mine: Path, tmp_path: Path, encoding: str) -> None:
    done = start(short(mine, tmp_path / "runs"), env={**os.environ, "PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "report.html").exists()
    text = done.stdout.decode(encoding)
    assert "SGD" in text
    assert ("+-" if encoding == "ascii" else "±") in text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_output_is_one_sentence_and_the_report_is_there(mine: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = start(short(mine, tmp_path / "runs"), stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode() == "error: the output cannot be written (No space left on device)\n"
    assert (tmp_path / "runs" / "report.html").exists()


def test_a_reader_that_has_enough_is_no_error(mine: Path, tmp_path: Path) -> None:
    assert surefoot(*short(mine, tmp_path / "runs")).exit_code == 0
    reader, writer = os.pipe()
    os.close(reader)
    done = start(["runs", tmp_path / "runs"], stdout=writer)
    os.close(writer)
    assert done.stderr == b""


def test_closed_streams_do_not_stop_two_workers(mine: Path, tmp_path: Path) -> None:
    def close() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    out = tmp_path / "runs"
    done = start([*short(mine, out), "--jobs", 2], stdout=None, stderr=None, preexec_fn=close)
    assert done.returncode == 0
    assert (out / "report.html").exists()
    assert all(run.finished for run in read_runs(out))


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", ""),
        ("runs", ""),
        ("report", "runs", "-o", ""),
        ("compare", "digits-lr", "--report", ""),
        ("fork", "digits-lr", "--at", 1, "--report", ""),
        ("tune", "digits-lr", "--report", ""),
        ("paper", "--export", ""),
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments: tuple[object, ...]) -> None:
    done = surefoot(*arguments)
    assert done.exit_code == 2
    assert "a path is missing" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "digits-lr", "-o", f"adam:lr={'9' * 400}"),
        ("compare", "digits-lr", "-o", f"adam:betas=({'9' * 400},0.9)"),
        ("tune", "digits-lr", "-o", "adam", "--lr", "9" * 400),
        ("tune", "digits-lr", "-o", "adam", "--lr", f"1,{'9' * 400}"),
    ],
)
def test_a_number_of_400_digits_is_refused(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    done = surefoot(*arguments, "--out", tmp_path / "runs")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
