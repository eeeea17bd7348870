// Renews the parts of a page marked data-live when something changed, and goes on reading a run's log. Without it
// every page is whole; with it nobody has to reload. Nothing is replaced under the reader's focus or selection.
(() => {
  "use strict";
  const LOOK_MS = 5000, LOG_MS = 2000, WHOLE_MS = 60000, LOG_MAX = 400000;
  const note = document.getElementById("live-note");
  let revision = document.documentElement.dataset.revision;
  let renewed = Date.now();
  let connected = true;

  const say = (words) => { if (note.textContent !== words) note.textContent = words; };

  const lost = () => {
    connected = false;
    say("No answer from the scheduler's page; trying again.");
  };

  const ask = async (address) => {
    const answer = await fetch(address, { credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) { location.reload(); throw new Error("signed out"); }
    if (!answer.ok) throw new Error(String(answer.status));
    return answer;
  };

  const busy = (part) => {
    const selection = document.getSelection();
    return part.contains(document.activeElement) ||
      (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  };

  const renew = async () => {
    const text = await (await ask(location.pathname + location.search)).text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    let whole = true;
    for (const part of document.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(part.id);
      if (!next || next.outerHTML === part.outerHTML) continue;
      if (busy(part)) { whole = false; continue; }
      for (const open of part.querySelectorAll("details[open][id]")) {
        const same = next.querySelector("#" + CSS.escape(open.id));
        if (same) same.open = true;
      }
      const places = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      part.replaceWith(next);
      [...next.querySelectorAll(".scroll")].forEach((each, index) => { each.scrollLeft = places[index] || 0; });
      next.querySelectorAll(".chart-scroll").forEach(keepNames);
    }
    if (whole) {
      revision = fresh.documentElement.dataset.revision;
      renewed = Date.now();
    }
  };

  const look = async () => {
    if (!document.hidden) {
      try {
        const found = await (await ask("/api/v1/revision")).json();
        if (found.revision !== revision || Date.now() - renewed > WHOLE_MS) await renew();
        if (!connected) { connected = true; say(""); }
      } catch { lost(); }
    }
    setTimeout(look, LOOK_MS);
  };

  const follow = async (log) => {
    if (!document.hidden) {
      try {
        const found = await (await ask(log.dataset.log + "?after=" + log.dataset.next)).json();
        if (found.text) {
          const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
          log.append(found.text);
          if (log.textContent.length > LOG_MAX) log.textContent = log.textContent.slice(-LOG_MAX / 2);
          if (atEnd) log.scrollTop = log.scrollHeight;
          document.getElementById("log-empty").hidden = true;
        }
        const why = document.getElementById("log-why");
        why.hidden = !found.why;
        why.querySelector("span").textContent = found.why;
        log.dataset.next = found.next;
        if (found.ended) return;
      } catch { lost(); }
    }
    setTimeout(() => follow(log), LOG_MS);
  };

  // On a narrow screen the chart is wider than its place: it begins at now, and the names of its rows stay in sight.
  const keepNames = (scroll) => scroll.style.setProperty("--scrolled", scroll.scrollLeft + "px");
  document.addEventListener("scroll", (event) => {
    if (event.target instanceof Element && event.target.matches(".chart-scroll")) keepNames(event.target);
  }, { capture: true, passive: true });
  for (const scroll of document.querySelectorAll(".chart-scroll")) {
    const now = scroll.querySelector("#now");
    if (now) {
      const at = now.getBoundingClientRect().left - scroll.getBoundingClientRect().left;
      scroll.scrollLeft = at - scroll.clientWidth / 2;
    }
    keepNames(scroll);
  }
  const log = document.getElementById("log");
  if (log) {
    log.scrollTop = log.scrollHeight;
    if (!("ended" in log.dataset)) setTimeout(() => follow(log), LOG_MS);
  }
  setTimeout(look, LOOK_MS);
})();
