// Browsers start no worker from a file on disk, and the search is one. Opened from disk, the site gets a worker that
// runs in a hidden frame: messages go to the frame's window, and its postMessage answers here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const base = new URL(url, location)
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      const load = source =>
        new Promise((resolve, reject) => {
          const script = this.inside.document.createElement("script")
          script.src = new URL(source, base)
          script.onload = resolve
          script.onerror = reject
          this.inside.document.body.appendChild(script)
        })
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.loaded = load(base)
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
