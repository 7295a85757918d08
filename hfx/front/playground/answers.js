// Answers as readers take them: one function for each task, from an answer's JSON and the request's values to elements.

import { element, number, withShare } from './elements.js'

const HUES = 6 // of entities' labels (page.css)

export const ANSWERS = {
  'text-classification': answer => [bars(answer[0])],
  'zero-shot-classification': answer => [bars(answer)],
  'text-ranking': (answer, values) => [bars(answer.map(({ index, score }) => ({ label: values.get('inputs.texts')[index], score })))],
  'token-classification': (answer, values) => entities(answer, values.get('inputs')),
  'fill-mask': answer => masks(answer).map(fills => bars(fills.map(({ token_str, score }) => ({ label: token_str, score })))),
  'question-answering': (answer, values) => passage(answer, values.get('inputs.context')),
  'feature-extraction': (answer, values) => vectors(answer, values.get('inputs')),
}

/** A list of tokens for each mask; of one mask, the answer is that list. */
const masks = answer => Array.isArray(answer[0]) ? answer : [answer]

/** Labels with scores; scores that are no shares are drawn beside the largest. */
function bars(rows) {
  const largest = Math.max(1, ...rows.map(row => Math.abs(row.score)))
  return element('ol', { class: 'bars' }, ...rows.map(row =>
    element('li', {},
      element('span', { class: 'label' }, row.label),
      element('span', { class: 'score' }, number(row.score, 4)),
      withShare(element('span', { class: 'bar', 'aria-hidden': 'true' }), Math.abs(row.score) / largest))))
}

const labelOf = span => span.entity_group ?? span.entity

/** The text with its entities marked, and a table of them. Places are characters, of which some are two units here. */
function entities(spans, text) {
  if (!spans.length) return [element('p', { class: 'passage' }, text), element('p', { class: 'muted' }, 'No entities.')]
  const labels = [...new Set(spans.map(labelOf))].sort()
  const marked = markedText(text, spans, span =>
    element('mark', { class: `hue-${labels.indexOf(labelOf(span)) % HUES}` },
      pieceOf(text, span), element('span', { class: 'tag' }, labelOf(span))))
  const rows = spans.map(span => [span.word, labelOf(span), number(span.score, 4)])
  return [marked, table(['Entity', 'Label', 'Score'], rows)]
}

function passage(answer, context) {
  const lines = [element('p', { class: 'reply' }, answer.answer || 'No answer in the context.')]
  lines.push(element('p', { class: 'muted' }, `Score ${number(answer.score, 4)}`))
  lines.push(markedText(context, answer.end > answer.start ? [answer] : [], span => element('mark', {}, pieceOf(context, span))))
  return lines
}

const pieceOf = (text, span) => Array.from(text).slice(span.start, span.end).join('')

function markedText(text, spans, mark) {
  const characters = Array.from(text)
  const paragraph = element('p', { class: 'passage' })
  let place = 0
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < place) continue
    paragraph.append(characters.slice(place, span.start).join(''), mark(span))
    place = span.end
  }
  paragraph.append(characters.slice(place).join(''))
  return paragraph
}

function vectors(rows, texts) {
  const lengths = rows.map(row => Math.hypot(...row))
  const firstNumbers = row => `${row.slice(0, 4).map(value => number(value, 3)).join('  ')} …`
  const described = rows.map((row, index) => [texts[index], number(lengths[index], 3), firstNumbers(row)])
  const summary = element('p', { class: 'reply' }, `${rows.length} × ${rows[0].length} numbers`)
  const parts = [summary, table(['Text', 'Length', 'First numbers'], described)]
  if (rows.length > 1) parts.push(element('h4', {}, 'Cosines'), cosines(rows, lengths, texts))
  return parts
}

function cosines(rows, lengths, texts) {
  const cosine = (a, b) => rows[a].reduce((sum, value, index) => sum + value * rows[b][index], 0) / (lengths[a] * lengths[b] || 1)
  const head = element('tr', {}, element('td'), ...texts.map((text, index) => element('th', { scope: 'col', title: text }, String(index + 1))))
  const lines = rows.map((_, a) => element('tr', {},
    element('th', { scope: 'row' }, `${a + 1}  ${texts[a]}`),
    ...rows.map((_, b) => withShare(element('td', { class: 'shade' }, number(cosine(a, b), 2)), cosine(a, b)))))
  return scrolled(element('table', { class: 'matrix' }, element('thead', {}, head), element('tbody', {}, ...lines)))
}

function table(head, rows) {
  return scrolled(element('table', {},
    element('thead', {}, element('tr', {}, ...head.map(text => element('th', { scope: 'col' }, text)))),
    element('tbody', {}, ...rows.map(row => element('tr', {}, ...row.map(text => element('td', {}, text)))))))
}

const scrolled = content => element('div', { class: 'scrolled' }, content)
