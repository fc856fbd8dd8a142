/* The trace as a file, and the way to ui.perfetto.dev: nothing is sent unless a button is pressed. */

report.PERFETTO = "https://ui.perfetto.dev";

/** The trace in Chrome's trace format, as `weft bench --trace` writes it. */
report.traceText = (profile) => {
  const events = profile.rows.map((row, i) => ({
    ph: "M", pid: 1, tid: i, name: "thread_name", args: { name: row.name },
  }));
  profile.rows.forEach((row, tid) => {
    for (let i = 0; i < row.start.length; i += 1) {
      const about = profile.abouts[row.about[i]];
      const args = about.steps ? { ...about, steps: about.steps.map((step) => profile.steps[step]) } : about;
      events.push({
        ph: "X", pid: 1, tid, name: profile.names[row.title[i]], cat: profile.names[row.kind[i]],
        ts: row.start[i] / 1000, dur: (row.end[i] - row.start[i]) / 1000, args,
      });
    }
  });
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
};

/** The buttons below the timeline. */
report.perfettoTools = (profile, data) => {
  const { el } = report;
  const name = `${String(data.title || "weft").replace(/[^\w.-]+/g, "-")}-trace.json`;
  const said = el("p", { class: "soft", role: "status" });
  const download = () => {
    const url = URL.createObjectURL(new Blob([report.traceText(profile)], { type: "application/json" }));
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };
  const byHand = () => said.replaceChildren(
    "A page that was opened from disk cannot hand the trace over. Download it, open ",
    el("a", { href: report.PERFETTO, target: "_blank", rel: "noopener noreferrer", text: report.PERFETTO }),
    " and drop the file there; it stays in your browser.");
  const open = () => {
    if (!/^https?:$/.test(location.protocol)) {
      byHand();
      return;
    }
    report.handToPerfetto(report.traceText(profile), String(data.title || "weft"), name, byHand);
  };
  return el("div", {}, el("div", { class: "tools" },
    el("button", { type: "button", class: "button", text: "Download the trace", onclick: download }),
    el("button", { type: "button", class: "button", text: "Open in Perfetto", onclick: open })), said);
};

/** Opens Perfetto and gives it the trace once it answers; see "Deep linking to the Perfetto UI" in
    its documentation: PING until PONG, then the bytes. */
report.handToPerfetto = (text, title, fileName, failed) => {
  const other = window.open(report.PERFETTO);
  if (!other) {
    failed();
    return;
  }
  const buffer = new TextEncoder().encode(text).buffer;
  let left = 200; // 20 seconds
  const timer = setInterval(() => {
    left -= 1;
    if (left && !other.closed) other.postMessage("PING", report.PERFETTO);
    else stop();
  }, 100);
  const heard = (event) => {
    if (event.source !== other || event.origin !== report.PERFETTO || event.data !== "PONG") return;
    stop();
    other.postMessage({ perfetto: { buffer, title, fileName } }, report.PERFETTO, [buffer]);
  };
  const stop = () => {
    clearInterval(timer);
    removeEventListener("message", heard);
  };
  addEventListener("message", heard);
};
