// A generated text, as it comes, and its times.

import { element } from './elements.js'
import { events, send } from './requests.js'

/**
 * Send `request` and write its text into `answer`. Returns the counts and times (ms since `began`) up to its end, or to
 * a stop through `signal`.
 */
export async function generate(request, prompt, answer, signal, began) {
  const written = element('span', { class: 'written' })
  const figures = { first: null, last: null, writtenAtFirst: 0, written: 0, read: null, reason: null }
  answer.replaceChildren(element('p', { class: 'generated' }, prompt ? element('span', { class: 'prompt' }, prompt) : null, written))
  try {
    const response = await send(request.path, request.body, signal)
    for await (const [event, came] of events(response)) note(figures, request.read(event), written, came - began)
  } catch (error) {
    if (error.name !== 'AbortError') throw error
    figures.reason = 'stopped'
  }
  figures.last ??= performance.now() - began
  return figures
}

function note(figures, piece, written, now) {
  written.append(piece.text)
  figures.written = piece.written ?? figures.written + (piece.text ? 1 : 0)
  if (piece.text || piece.reason) figures.first ??= now
  if (figures.first === now) figures.writtenAtFirst = figures.written
  figures.read = piece.read ?? figures.read
  figures.reason = piece.reason ?? figures.reason
  if (piece.text || piece.reason) figures.last = now
}
