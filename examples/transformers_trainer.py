"""Train a tiny language model with the Transformers Trainer and AdamS; nothing is downloaded.

Two lines change: where `Trainer` comes from, and the optimizer. The text is a made-up language in which every word
is followed by the same three words each time, so that most of it can be learnt.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainingArguments

import surefoot
from surefoot.integrations.transformers import Trainer  # was: from transformers import Trainer

WORDS, LENGTH = 64, 16


def sentences(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    endings = torch.randint(WORDS, (WORDS, 3), generator=generator)
    starts = torch.randint(WORDS, (count, LENGTH // 4), generator=generator)
    text = torch.cat([starts[..., None], endings[starts]], dim=2).reshape(count, LENGTH)
    return [{"input_ids": row, "labels": row} for row in text]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, **ends))
    model.loss_type = "ForCausalLM"  # GPT-2 does not say so itself, and the Trainer would count one token too many
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            lr_scheduler_type="constant",
            logging_steps=max(1, steps // 3),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=sentences(2000),
            optimizer_cls_and_kwargs=(surefoot.AdamS, {"lr": 5e-3, "eta": 0.1}),  # was: optim=...
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row:
            stats = {name: row[f"surefoot/group0/{name}"] for name in ("mean", "std", "weight")}
            print(f"step {row['step']}: loss {row['loss']:.3f},", ", ".join(f"{k} {v:.3g}" for k, v in stats.items()))


if __name__ == "__main__":
    main()
