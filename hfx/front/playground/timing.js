// Where a request's time went.

import { duration, element, number, withShare } from './elements.js'

/** Of a generated text: its first token, its speed, and its end. */
export function generationTimes(figures) {
  const seconds = (figures.last - figures.first) / 1000
  const later = figures.written - figures.writtenAtFirst
  const rows = [
    ['First token', figures.first === null ? '–' : duration(figures.first)],
    ['Tokens per second', later > 0 && seconds > 0 ? number(later / seconds, 0) : '–'],
    ['Total', duration(figures.last)],
    ['Tokens', `${figures.read === null ? '' : `${figures.read} read, `}${figures.written} written`],
    ['Ended by', figures.reason ?? '–'],
  ]
  return element('dl', { class: 'figures' }, ...rows.map(([name, value]) =>
    element('div', {}, element('dt', {}, name), element('dd', {}, value))))
}

/** Of an encoder: the total in this page and, where the server's statistics have them (`steps`), its parts. */
export function encoderTimes(total, steps) {
  const nodes = [element('p', { class: 'reply' }, duration(total))]
  if (!steps) return nodes
  const counted = steps.parts.reduce((sum, part) => sum + part.milliseconds, 0)
  const isOwn = steps.requests === 1
  const parts = isOwn ? [...steps.parts, { name: 'front, network, browser', milliseconds: Math.max(0, total - counted) }] : steps.parts
  const whole = parts.reduce((sum, part) => sum + part.milliseconds, 0) || 1
  const shade = part => `part-${part.name.split(',')[0]}`
  const stack = parts.map(part => withShare(element('span', { class: shade(part) }), part.milliseconds / whole))
  const legend = parts.map(part => element('li', {},
    element('span', { class: `swatch ${shade(part)}`, 'aria-hidden': 'true' }), `${part.name} `, element('b', {}, duration(part.milliseconds))))
  nodes.push(element('div', { class: 'stack', 'aria-hidden': 'true' }, ...stack), element('ul', { class: 'legend' }, ...legend))
  if (!isOwn) nodes.push(element('p', { class: 'muted' }, `The parts are the average of the ${steps.requests} requests that the server counted in this time.`))
  return nodes
}
