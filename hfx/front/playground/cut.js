// A note about the end of a text that an encoder will not read, before the request is sent.

import { byId } from './elements.js'
import { json, RequestFailed } from './requests.js'

const PAUSE = 400 // ms without input, after which texts are tokenized
const TOKENS_PER_UNIT = 3 // at most: a unit of UTF-16 has at most three bytes, and a token at least one
const SPECIAL = 8 // tokens around a text, at most

let timer = 0

/** Show how much of the texts in `read`, the values of the form, `model` will cut off. */
export function showCut(model, read) {
  clearTimeout(timer)
  byId('cut').hidden = true
  const texts = [read.get('inputs') ?? []].flat()
  const mayBeCut = texts.some(text => TOKENS_PER_UNIT * text.length + SPECIAL > model.max_tokens)
  if (model.max_tokens && mayBeCut) timer = setTimeout(() => tokenize(model, texts, timer), PAUSE)
}

async function tokenize(model, texts, own) {
  try {
    const rows = await json(`models/${encodeURIComponent(model.name)}/tokenize`, { inputs: texts })
    const cut = rows.map((tokens, index) => unread(texts[index], tokens, model.max_tokens)).filter(Boolean)
    if (own !== timer || !cut.length) return
    const read = `The model reads ${model.max_tokens} tokens`
    byId('cut').textContent = `${read}: the last ${cut[0].toLocaleString('en')} characters of a text will be cut off.`
    byId('cut').hidden = false
  } catch (error) {
    if (!(error instanceof RequestFailed)) throw error // the request itself will say what is wrong
  }
}

/** The number of characters behind the last token, if the model reads no more tokens. */
function unread(text, tokens, most) {
  const end = Math.max(0, ...tokens.filter(({ special }) => !special).map(({ stop }) => stop))
  return tokens.length < most ? 0 : [...[...text].slice(end).join('').trim()].length
}
