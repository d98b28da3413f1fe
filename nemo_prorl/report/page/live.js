// Keeps an open page up to date: fetches it again and takes over what differs, so that nothing flashes and neither the
// place on the page nor what the reader has opened, hidden or zoomed is lost.
(() => {
  "use strict";
  const PERIOD_MS = 4000;
  const note = document.getElementById("live");
  let shownTag = null;
  let isBusy = false;

  const isSame = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");

  function isReaders(element, name) {
    return (element.nodeName === "DETAILS" && name === "open") || name === "aria-pressed";
  }

  function morph(old, fresh) {
    if (old === note) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.classList.contains("chart")) { // Plotly's inside; page.js draws it
      old.setAttribute("aria-label", fresh.getAttribute("aria-label"));
      old.style.height = fresh.style.height;
      return;
    }
    for (const { name, value } of fresh.attributes) {
      if (!isReaders(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!isReaders(old, name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    morphChildren(old, fresh);
  }

  function morphChildren(old, fresh) {
    const named = new Map([...old.children].filter(({ id }) => id).map((child) => [child.id, child]));
    let next = old.firstChild;
    for (const node of fresh.childNodes) {
      const mate = node.id ? named.get(node.id) : next;
      if (!mate || !isSame(mate, node)) {
        old.insertBefore(document.importNode(node, true), next);
        continue;
      }
      if (mate === next) next = next.nextSibling;
      else old.insertBefore(mate, next);
      morph(mate, node);
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  }

  function say(text, isLost) {
    if (note.textContent !== text) note.textContent = text;
    note.classList.toggle("lost", isLost);
  }

  async function update() {
    if (isBusy || document.hidden) return;
    isBusy = true;
    try {
      const answer = await fetch("/", { cache: "no-cache" });
      if (!answer.ok) throw new Error(answer.statusText);
      const tag = answer.headers.get("Last-Modified");
      if (tag !== shownTag) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (fresh.body.dataset.page !== document.body.dataset.page) return location.reload();
        document.title = fresh.title;
        morph(document.body, fresh.body);
        document.dispatchEvent(new Event("report-changed"));
        shownTag = tag;
      }
      say("Live", false);
    } catch (error) {
      say("Not live: the command that serves this page does not answer. It may have ended.", true);
    } finally {
      isBusy = false;
    }
  }

  setInterval(update, PERIOD_MS);
  document.addEventListener("visibilitychange", update);
})();
