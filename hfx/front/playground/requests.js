// Requests to the server: JSON, streams of events, and the statistics that say where a request's time went.

const KEY = 'hfx-api-key'
const STATISTICS = 'v2/models/stats'
const STEPS = ['tokenize', 'net', 'postprocess']
const TRIES = 6 // Triton counts a request shortly after its answer
const PAUSE = 60 // ms between two

export class RequestFailed extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: value => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
}

/** The answer to a POST of `body`, or to a GET without one. Throws RequestFailed for what is no success. */
export async function send(path, body, signal) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {}
  if (body !== undefined) headers['Content-Type'] = 'application/json'
  const response = await fetch(path, {
    method: body === undefined ? 'GET' : 'POST', headers, body: body && JSON.stringify(body), signal, cache: 'no-store',
  })
  if (!response.ok) throw new RequestFailed(response.status, messageOf(await response.text(), response.status))
  return response
}

export const json = async (path, body, signal) => (await send(path, body, signal)).json()

/** The server-sent events of an answer, parsed, with the times at which they came: those of one read have one time. */
export async function* events(response) {
  const decoder = new TextDecoder()
  const reader = response.body.getReader()
  let left = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const came = performance.now()
    const parts = (left + decoder.decode(value, { stream: true })).split('\n\n')
    left = parts.pop()
    for (const part of parts) {
      const text = part.replace(/^data: ?/, '')
      if (text === '[DONE]') return
      const event = JSON.parse(text)
      if (event.error) throw new RequestFailed(0, messageOf(text, 0))
      yield [event, came]
    }
  }
}

/** The counters of all models by name; null where the server has none. */
export async function statistics() {
  try {
    const content = await json(STATISTICS)
    return new Map(content.model_stats.map(model => [model.name, model.inference_stats]))
  } catch {
    return null
  }
}

/**
 * Where the time of an encoder's requests since `before` went, in ms for each: [{ name, milliseconds }], with the number
 * of `requests` that the server has counted, those of other callers too. Null where they can't be had.
 */
export async function steps(model, before) {
  for (let attempt = 0; before && attempt < TRIES; attempt++) {
    const after = await statistics()
    const counted = name => after?.has(name) && before.has(name)
    const members = STEPS.filter(step => counted(`${model}_${step}`))
    const deltas = members.map(step => deltaOf(step, before.get(`${model}_${step}`), after.get(`${model}_${step}`)))
    const whole = deltas.length || !counted(model) ? null : oneHop(before.get(model), after.get(model))
    if (whole) return whole
    if (deltas.length && deltas.every(delta => delta.requests > 0)) return summed(deltas)
    await new Promise(resolve => setTimeout(resolve, PAUSE))
  }
  return null
}

function deltaOf(name, before, after) {
  const difference = (field, part) => Number(after[field][part]) - Number(before[field][part])
  const requests = difference('success', 'count')
  const computed = ['compute_input', 'compute_infer', 'compute_output'].reduce((sum, field) => sum + difference(field, 'ns'), 0)
  return { name, requests, queue: difference('queue', 'ns') / requests / 1e6, compute: computed / requests / 1e6 }
}

/** Of an encoder that is one model: its computing is tokenizing, the net and the answer. */
function oneHop(before, after) {
  const difference = (field, part) => Number(after[field][part]) - Number(before[field][part])
  const requests = difference('success', 'count')
  if (!requests) return null
  const parts = [['queue', 'queue'], ['tokenize', 'compute_input'], ['net', 'compute_infer'], ['answer', 'compute_output']]
  return { requests, parts: parts.map(([name, field]) => ({ name, milliseconds: difference(field, 'ns') / requests / 1e6 })) }
}

function summed(deltas) {
  const queue = deltas.reduce((sum, delta) => sum + delta.queue, 0)
  return {
    requests: Math.max(...deltas.map(delta => delta.requests)),
    parts: [{ name: 'queue', milliseconds: queue }, ...deltas.map(({ name, compute }) => ({ name, milliseconds: compute }))],
  }
}

function messageOf(text, status) {
  try {
    const { error } = JSON.parse(text)
    return String(error.message ?? error)
  } catch {
    return text.slice(0, 500) || `The server answered with the status ${status}.`
  }
}
