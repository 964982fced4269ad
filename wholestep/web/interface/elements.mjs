// Small helpers about elements.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "g", "line", "path", "circle", "text", "title"]);

// An element with attributes (functions are listeners) and children; text is never read as HTML.
export function make(name, attributes = {}, ...children) {
  const element = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat());
}

// Show an error in its place; "" hides it.
export function showError(id, error) {
  const place = byId(id);
  place.textContent = error ? error.message : "";
  place.hidden = !error;
  if (error && error.name !== "DataError") console.error(error);
}

export function formatted(value) {
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e9 || (size < 1e-3 && size > 0) ? value.toExponential(2) : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

const upper = (text) => text[0].toUpperCase() + text.slice(1);

const ABBREVIATION = /\b(mae|mse|rmse|mape|auc|f1|r2)\b/g;

export const titled = (name) => upper(name.replace(/^lr\b/, "learning rate").replace(/^val_/, "validation ").replaceAll("_", " ").replace(ABBREVIATION, (word) => word.toUpperCase()));

export function download(name, data, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([data], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A table of text and numbers; names is a list of column names.
export function tableOf(names, rows, caption = null) {
  const kind = (value) => (typeof value === "number" ? {} : { class: "text" });
  return make("table", {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, names.map((name, i) => make("th", { scope: "col", ...kind(rows[0]?.[i]) }, name)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((value) => make("td", { ...kind(value), title: typeof value === "string" && value.length > 24 ? value : null }, formatted(value)))))),
  );
}
