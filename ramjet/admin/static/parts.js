"use strict";
/* What Ramjet says: the stream of parts, the token, and small helpers that the other scripts share. */

const byId = (id) => document.getElementById(id);

/** An element with attributes (null leaves one out) and children; text is always text. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (["width", "left", "flexGrow"].includes(name)) element.style[name] = value;
    else if (value === null || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

/** Text that is only touched when it changes: what is selected or read aloud stays as it is. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keep a container's children in step with items: made once by their key, moved only if out of place. */
function keyed(container, items, key, make, update) {
  const known = container.made || (container.made = new Map());
  const wanted = new Set(items.map(key));
  for (const [name, element] of known) {
    if (wanted.has(name)) continue;
    element.remove();
    known.delete(name);
  }
  let next = container.firstElementChild;
  for (const item of items) {
    let element = known.get(key(item));
    if (!element) known.set(key(item), (element = make(item)));
    if (element === next) next = next.nextElementSibling;
    else container.insertBefore(element, next);
    update(element, item);
  }
}

const count = (value) => (value === null || value === undefined ? "-" : value.toLocaleString("en"));
const tokens = (value) =>
  value === null || value === undefined ? "-" : value < 1e4 ? count(value) : value < 1e6 ? `${Math.round(value / 1e3)}k` : `${(value / 1e6).toFixed(2)}M`;
const share = (value) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(value > 0.995 && value < 1 ? 1 : 0)} %`);
function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 0.0005) return "0 s";
  if (value < 0.9995) return `${value < 0.0995 ? value.toFixed(3) : value.toFixed(2)} s`;
  if (value < 99.5) return `${value.toFixed(1)} s`;
  return `${Math.round(value)} s`;
}
function ago(value) {
  if (value < 1) return "now";
  if (value < 90) return `${Math.round(value)} s ago`;
  return value < 5400 ? `${Math.round(value / 60)} min ago` : `${Math.round(value / 3600)} h ago`;
}

/** The hue of a conversation: the same on every replica, in every list, after every reload. */
const hue = (conversation) => (conversation ? String(Math.round((parseInt(conversation.slice(0, 6), 16) * 137.508) % 360)) : "0");

const TOKEN = "ramjet-admin-token";
const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
};

async function ask(path, method = "GET") {
  const answer = await fetch(path, { method, headers: headers(), cache: "no-store" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || `${method} ${path}: status ${answer.status}`);
  return body;
}

/** Refused: the message is Ramjet's. */
class Refused extends Error {}

/**
 * Read the stream of parts for ever, connecting again when it breaks.
 * @param {object} on takes(parts), lost(message), refused(message)
 */
async function watch(on) {
  for (let pause = 500; ; pause = Math.min(5000, 2 * pause)) {
    try {
      const answer = await fetch("/api/events", { headers: headers(), cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        const body = await answer.json().catch(() => ({}));
        throw new Refused(body.error || `status ${answer.status}`);
      }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      pause = 500;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      on.starts();
      let rest = "";
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        rest += piece.value;
        const events = rest.split("\n\n");
        rest = events.pop();
        for (const event of events) on.takes(JSON.parse(event.slice("data: ".length)));
      }
      on.lost("the connection ended");
    } catch (error) {
      if (error instanceof Refused) {
        await on.refused(error.message);
        continue;
      }
      on.lost("Ramjet does not answer");
    }
    await new Promise((go) => setTimeout(go, pause));
  }
}
