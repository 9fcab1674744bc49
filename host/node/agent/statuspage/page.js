// Keeps the parts of a page that change up to date, and searches while typing. Without it the page shows the same, as it was when it was loaded.
"use strict";
(() => {
  const status = document.getElementById("connection");
  const pause = document.createElement("button");
  pause.type = "button";
  pause.id = "pause";
  pause.textContent = "Pause updates";
  status.before(pause);
  let source, retry, paused = false;
  const say = (text, state) => {
    if (status.textContent !== text) status.textContent = text;
    status.className = state;
  };

  // replace puts new markup into a part. It keeps the focus and how far tables are scrolled.
  const replace = (id, markup) => {
    const part = document.getElementById(id);
    const next = new DOMParser().parseFromString(markup, "text/html").body;
    const links = (root) => [...root.querySelectorAll("a[href], [tabindex]")];
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const key = (element) => (element.id || "") + "|" + (element.getAttribute("href") || element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || "");
    const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    part.replaceChildren(...next.childNodes);
    part.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = scrolled[i] || 0; });
    if (focused) links(part).find((element) => key(element) === key(focused))?.focus({ preventScroll: true });
  };

  const connect = () => {
    clearTimeout(retry);
    source?.close();
    if (paused) return;
    source = new EventSource(location.pathname + location.search);
    source.onopen = () => say("Live", "live");
    source.onmessage = (event) => {
      for (const [id, markup] of Object.entries(JSON.parse(event.data))) replace(id, markup);
    };
    source.onerror = () => {
      say("Not connected, trying again", "lost");
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
    };
  };
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    if (paused) {
      source?.close();
      clearTimeout(retry);
      say("Paused", "paused");
    } else {
      connect();
    }
  });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

  const form = document.getElementById("search");
  if (form) {
    let typing, asked = 0;
    const search = async () => {
      const query = new URLSearchParams();
      for (const [name, value] of new FormData(form)) if (value) query.set(name, value);
      const url = "/" + (query.size ? "?" + query : ""), mine = ++asked;
      try {
        const answer = await fetch(url);
        const text = await answer.text();
        if (mine !== asked) return;
        const found = new DOMParser().parseFromString(text, "text/html").getElementById("live");
        if (!found) return;
        document.getElementById("live").replaceChildren(...found.childNodes);
        history.replaceState(null, "", url);
        connect();
      } catch {
        say("Not connected, trying again", "lost");
        if (mine === asked) typing = setTimeout(search, 2000);
      }
    };
    form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 150); });
    form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); search(); });
  }
  connect();
})();
