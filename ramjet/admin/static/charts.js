"use strict";
/* Charts of the last half hour, drawn as SVG: lines with a band, and stacked columns. A pointer or the arrow keys read them. */

const WIDTH = 420, HEIGHT = 190, LEFT = 40, RIGHT = 8, TOP = 10, BOTTOM = 22;

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The frame of a chart, made once: title, readout, picture, legend. */
function frame(figure, title) {
  if (figure.parts) return figure.parts;
  const readout = el("span", { class: "readout" });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" });
  const legend = el("div", { class: "legend" });
  figure.append(el("figcaption", {}, el("strong", {}, title), readout), picture, legend);
  figure.parts = { readout, picture, legend, at: null, title };
  const read = () => figure.parts.show && figure.parts.show(figure.parts.at);
  const move = (at) => {
    figure.parts.at = at === null ? null : Math.max(0, Math.min(figure.parts.length - 1, at));
    read();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    move(Math.round(((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (figure.parts.length - 1)));
  });
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move((figure.parts.at === null ? figure.parts.length : figure.parts.at) + step);
    say(byId("said"), figure.parts.readout.textContent);
  });
  return figure.parts;
}

const across = (at, length) => LEFT + (at / (length - 1)) * (WIDTH - LEFT - RIGHT);

function axes(picture, length, bucket_s, ticks, y) {
  const drawn = [];
  for (const { value, label } of ticks) {
    drawn.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    drawn.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label));
  }
  const minutes = (length * bucket_s) / 60;
  for (const back of [5, 4, 3, 2, 1, 0].map((part) => (part * minutes) / 5)) {
    const x = across((1 - back / minutes) * (length - 1), length);
    const anchor = back === minutes ? "start" : back ? "middle" : "end";
    drawn.push(svg("text", { x, y: HEIGHT - 5, "text-anchor": anchor }, back ? `-${Math.round(back)} min` : "now"));
  }
  picture.append(...drawn);
}

const when = (at, length, bucket_s) => {
  const back = Math.round(((length - 1 - at) * bucket_s) / 6) / 10;
  return back ? `${back} min ago` : "now";
};

/**
 * Lines over time.
 * @param {Array} lines {name, colour, dash, values, high}: `high` is the upper end of a band above the values.
 * @param {object} scale {ticks: [{value, label}], y: value to 0..1, format}
 */
function lines(figure, title, drawn, bucket_s, scale) {
  const parts = frame(figure, title);
  const { picture, legend } = parts;
  const length = (parts.length = drawn[0].values.length);
  const y = (value) => TOP + (1 - Math.max(0, Math.min(1, scale.y(value)))) * (HEIGHT - TOP - BOTTOM);
  picture.replaceChildren();
  axes(picture, length, bucket_s, scale.ticks, y);
  for (const line of drawn) {
    for (const run of runs(line.values)) {
      const points = run.map((at) => `${across(at, length).toFixed(1)},${y(line.values[at]).toFixed(1)}`);
      if (line.high && run.length > 1) {
        const above = run.map((at) => `${across(at, length).toFixed(1)},${y(line.high[at]).toFixed(1)}`).reverse();
        picture.append(svg("polygon", { points: [...points, ...above].join(" "), fill: line.colour, opacity: ".13" }));
      }
      if (run.length === 1) {
        picture.append(svg("circle", { cx: across(run[0], length), cy: y(line.values[run[0]]), r: 2.4, fill: line.colour }));
      } else {
        picture.append(
          svg("polyline", { points: points.join(" "), fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": line.dash || "none" }),
        );
      }
    }
  }
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  const told = (at) => drawn.filter((line) => line.values[at] !== null).map((line) => `${line.name} ${scale.format(line.values[at], line.high && line.high[at])}`);
  parts.show = (at) => {
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) {
      cursor.setAttribute("x1", across(at, length));
      cursor.setAttribute("x2", across(at, length));
    }
    say(parts.readout, at === null ? scale.note : `${when(at, length, bucket_s)}: ${told(at).join(", ") || "nothing"}`);
  };
  parts.show(parts.at);
  picture.setAttribute("aria-label", `${title} over ${Math.round((length * bucket_s) / 60)} minutes. ${drawn.map((line) => `${line.name}: ${last(line.values, scale)}`).join("; ")}. Arrow keys read it.`);
  keyed(
    legend,
    drawn,
    (line) => line.name,
    (line) => el("span", { "--key": line.colour }, line.name),
    (element, line) => set(element, { class: line.values.some((value) => value !== null) ? null : "muted" }),
  );
}

const last = (values, scale) => {
  const known = values.filter((value) => value !== null);
  return known.length ? `last ${scale.format(known[known.length - 1])}` : "nothing";
};

/** Places of values that stand together: a gap of a minute or more breaks a line. */
function runs(values) {
  const found = [];
  let before = -10;
  values.forEach((value, at) => {
    if (value === null) return;
    if (at - before > 4) found.push([]);
    found[found.length - 1].push(at);
    before = at;
  });
  return found;
}

/** Stacked columns over time, `each` buckets a column; what there was in all is in the legend. */
function columns(figure, title, stacks, bucket_s, length, each, note) {
  const parts = frame(figure, title);
  const { picture, legend } = parts;
  const wide = Math.ceil(length / each);
  const sums = stacks.map((stack) => Array.from({ length: wide }, (_, at) => stack.values.slice(at * each, at * each + each).reduce((sum, value) => sum + value, 0)));
  const heights = Array.from({ length: wide }, (_, at) => sums.reduce((sum, values) => sum + values[at], 0));
  const most = Math.max(4, ...heights), step = most <= 4 ? 1 : most <= 10 ? 2 : Math.ceil(most / 5 / 5) * 5;
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  picture.replaceChildren();
  parts.length = wide;
  const ticks = [];
  for (let value = 0; value <= most; value += step) ticks.push({ value, label: String(value) });
  axes(picture, wide, each * bucket_s, ticks, y);
  const span = (WIDTH - LEFT - RIGHT) / wide;
  for (let at = 0; at < wide; at++) {
    let base = 0;
    stacks.forEach((stack, number) => {
      const value = sums[number][at];
      if (value) picture.append(svg("rect", { x: LEFT + at * span + 1, width: Math.max(1, span - 2), y: y(base + value), height: y(base) - y(base + value), fill: stack.colour, rx: 1.5 }));
      base += value;
    });
  }
  const cursor = svg("rect", { class: "cursor", y: TOP, height: HEIGHT - TOP - BOTTOM, width: span, fill: "currentColor", opacity: ".08", stroke: "none", visibility: "hidden" });
  picture.append(cursor);
  parts.show = (at) => {
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) cursor.setAttribute("x", LEFT + at * span);
    const told = at === null ? [] : stacks.map((stack, number) => [stack.name, sums[number][at]]).filter(([, value]) => value).map(([name, value]) => `${name} ${value}`);
    say(parts.readout, at === null ? note : `${when(at, wide, each * bucket_s)}: ${told.join(", ") || "none"}`);
  };
  parts.show(parts.at);
  const totals = stacks.map((stack) => ({ ...stack, total: stack.values.reduce((sum, value) => sum + value, 0) }));
  picture.setAttribute("aria-label", `${title}. ${totals.map((stack) => `${stack.name}: ${stack.total}`).join("; ") || "none"}. Arrow keys read it.`);
  keyed(
    legend,
    totals,
    (stack) => stack.name,
    (stack) => el("span", { "--key": stack.colour }),
    (element, stack) => say(element, `${stack.name} ${stack.total}`),
  );
}
