// A request to a model: its path, its JSON, and how the events of a stream are read.

const GENERATORS = ['text-generation', 'summarization', 'text2text-generation', 'translation']

export const isGenerator = model => GENERATORS.includes(model.task)

/** The request for `values` (path -> value): { path, body, streams, isChat, read }. */
export function requestOf(model, values, isChat) {
  return isChat ? chatOf(model, values) : plainOf(model, values)
}

function plainOf(model, values) {
  const body = {}
  for (const [path, value] of values) put(body, path.split('.'), value)
  if (isGenerator(model)) body.stream = true
  return { path: `models/${encodeURIComponent(model.name)}`, body, streams: isGenerator(model), isChat: false, read: readToken }
}

function chatOf(model, values) {
  const body = { model: model.name, messages: [{ role: 'user', content: values.get('inputs') }], stream: true }
  body.stream_options = { include_usage: true }
  for (const [path, value] of values) if (path.startsWith('parameters.')) body[path.slice('parameters.'.length)] = value
  return { path: 'v1/chat/completions', body, streams: true, isChat: true, read: readDelta }
}

function put(body, [name, ...rest], value) {
  if (rest.length) put((body[name] ??= {}), rest, value)
  else body[name] = value
}

/** Of an event of text-generation-inference: its text, and the tokens so far. */
function readToken(event) {
  return {
    text: event.token.text, written: event.index, read: event.details?.input_length, reason: event.details?.finish_reason,
  }
}

/** The same of an event of OpenAI's chat, where the counts come last. */
function readDelta(event) {
  const choice = event.choices[0]
  return {
    text: choice?.delta.content ?? '', written: event.usage?.completion_tokens, read: event.usage?.prompt_tokens,
    reason: choice?.finish_reason ?? undefined,
  }
}
