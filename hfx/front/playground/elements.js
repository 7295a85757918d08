// Elements of the page. Texts of models and servers become text nodes only, never markup.

export const byId = id => document.getElementById(id)

/** A new element: `attributes` by name (false and null: left out), then children, which are elements or texts. */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name)
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(attribute, value === true ? '' : value)
  }
  node.append(...children.filter(child => child !== null))
  return node
}

/** An element with the custom property `name` of CSS, by which its width or shade is chosen. */
export function withShare(node, share) {
  node.style.setProperty('--share', String(Math.max(0, Math.min(1, share))))
  return node
}

export const number = (value, digits) =>
  value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })

/** Milliseconds as readers take them. */
export function duration(milliseconds) {
  if (milliseconds >= 10000) return `${number(milliseconds / 1000, 1)} s`
  return `${number(milliseconds, milliseconds < 10 ? 2 : milliseconds < 100 ? 1 : 0)} ms`
}
