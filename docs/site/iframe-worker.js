// Browsers start no worker from a file on disk, so there the search runs in a hidden frame, with the
// four things of a worker that it uses: postMessage, onmessage, importScripts and terminate.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.ready = new Promise((ready) => {
        this.frame = document.createElement("iframe");
        this.frame.hidden = true;
        this.frame.title = "search";
        const start = () => {
          this.frame.onload = null;
          this.inside = this.frame.contentWindow;
          this.inside.postMessage = (data) => this.answer(data);
          this.inside.importScripts = (...urls) => urls.reduce(
            (before, next) => before.then(() => this.load(next)), Promise.resolve());
          this.load(url).then(ready);
        };
        this.frame.onload = start;
        this.frame.srcdoc = "<!doctype html><body>";
        document.body.appendChild(this.frame);
      });
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} cannot be loaded`));
        script.src = new URL(url, location.href).href;
        this.inside.document.body.appendChild(script);
      });
    }

    answer(data) {
      const event = new MessageEvent("message", { data });
      if (this.onmessage) this.onmessage(event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
