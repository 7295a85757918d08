// The request of the form as code to copy: curl, hfx's Python client, OpenAI's client. Each runs as it stands.

import { isGenerator } from './calls.js'

const BASE = new URL('.', document.baseURI).href.replace(/\/$/, '')
const TOKEN = 'HFX_TOKEN' // the variable that `hfx infer` reads, too
const WIDTH = 72
const OPENAI_SETTINGS = ['max_tokens', 'temperature', 'top_p', 'seed']
const PRINT_LABELS = ['for prediction in result.predictions:', '    print(f"{prediction.score:.4f}  {prediction.label}")']
const CALLS = {
  'text-classification': { method: 'classify', inputs: ['inputs'], print: PRINT_LABELS },
  'zero-shot-classification': { method: 'zero_shot', inputs: ['inputs', 'parameters.candidate_labels'], print: PRINT_LABELS },
  'token-classification': {
    method: 'label_tokens', inputs: ['inputs', 'parameters.candidate_labels'], // labels: of models that take them
    print: ['for entity in result.entities:', '    print(f"{entity.score:.4f}  {entity.entity}  {entity.word}")'],
  },
  'fill-mask': {
    method: 'fill_mask', inputs: ['inputs'],
    print: ['for fills in result.masks:', '    for fill in fills:', '        print(f"{fill.score:.4f}  {fill.sequence}")'],
  },
  'question-answering': {
    method: 'answer', inputs: ['inputs.question', 'inputs.context'], print: ['print(f"{result.score:.4f}  {result.answer}")'],
  },
  'text-ranking': { method: 'rank', inputs: ['inputs.query', 'inputs.texts'], print: ['for rank in result:', '    print(f"{rank.score:.4f}  {rank.index}")'] },
  'feature-extraction': { method: 'embed', inputs: ['inputs'], print: ['print(result.shape)', 'print(result @ result.T)'] },
}

/** The ways to send `request`: [{ name, text }]. `hasKey`: the server needs a key, which comes from the environment. */
export function snippets(model, values, request, hasKey) {
  const codes = [{ name: 'curl', text: curl(request, hasKey) }]
  if (!request.isChat && (isGenerator(model) || CALLS[model.task])) {
    codes.push({ name: 'Python', text: isGenerator(model) ? streamed(model, values, hasKey) : called(model, values, hasKey) })
  }
  const openai = openaiOf(model, values, request)
  if (openai) codes.push({ name: 'OpenAI', text: withOpenai(openai, hasKey) })
  return codes
}

function curl(request, hasKey) {
  const lines = [
    `curl ${request.streams ? '-N ' : ''}'${BASE}/${request.path}'`,
    ...(hasKey ? [`-H "Authorization: Bearer $${TOKEN}"`] : []),
    "-H 'Content-Type: application/json'",
    `-d '${JSON.stringify(request.body).replaceAll("'", "'\\''")}'`,
  ]
  return lines.join(' \\\n  ')
}

function called(model, values, hasKey) {
  const { method, inputs, print } = CALLS[model.task]
  const given = inputs.filter(path => values.has(path)).map(path => literal(values.get(path)))
  const call = callOf(`result = client.${method}`, [literal(model.name), ...given], keywordsOf(values, inputs), 4)
  return withClient([call, ...indented(print)], hasKey)
}

function streamed(model, values, hasKey) {
  const call = callOf('with client.stream', [literal(model.name), literal(values.get('inputs'))], keywordsOf(values, ['inputs']), 4)
  return withClient([`${call} as pieces:`, ...indented(['for piece in pieces:', '    print(piece.text, end="", flush=True)'], 8)], hasKey)
}

function withClient(lines, hasKey) {
  const token = hasKey ? `, token=os.environ["${TOKEN}"]` : ''
  return [...(hasKey ? ['import os', ''] : []), 'from hfx.client import Client', '',
    `with Client(${literal(BASE)}${token}) as client:`, ...lines].join('\n')
}

function openaiOf(model, values, request) {
  const name = `model=${literal(model.name)}`
  if (model.task === 'feature-extraction') {
    const print = ['for item in answer.data:', '    print(len(item.embedding), item.embedding[:4])']
    return [callOf('answer = api.embeddings.create', [name, `input=${literal(values.get('inputs'))}`], [], 0), ...print]
  }
  if (!isGenerator(model)) return null
  const text = literal(values.get('inputs'))
  const settings = openaiSettings(values)
  if (request.isChat) {
    const messages = `messages=[{"role": "user", "content": ${text}}]`
    return [callOf('stream = api.chat.completions.create', [name, messages, 'stream=True'], settings, 0),
      'for chunk in stream:', '    print(chunk.choices[0].delta.content or "", end="", flush=True)']
  }
  return [callOf('stream = api.completions.create', [name, `prompt=${text}`, 'stream=True'], settings, 0),
    'for chunk in stream:', '    print(chunk.choices[0].text, end="", flush=True)']
}

function withOpenai(lines, hasKey) {
  const token = hasKey ? `os.environ["${TOKEN}"]` : '"unused"'
  return [...(hasKey ? ['import os', ''] : []), 'from openai import OpenAI', '',
    `api = OpenAI(base_url=${literal(`${BASE}/v1`)}, api_key=${token})`, ...lines].join('\n')
}

/** Settings as keywords: those that OpenAI's client knows, and the others in its `extra_body`. */
function openaiSettings(values) {
  const rest = {}
  const known = []
  for (const [name, value] of parametersOf(values, ['inputs'])) {
    if (name === 'stop_words') known.push(`stop=${literal(value)}`)
    else if (OPENAI_SETTINGS.includes(name)) known.push(`${name}=${literal(value)}`)
    else rest[name] = value
  }
  return Object.keys(rest).length ? [...known, `extra_body=${literal(rest)}`] : known
}

const parametersOf = (values, inputs) =>
  [...values].filter(([path]) => !inputs.includes(path)).map(([path, value]) => [path.replace(/^parameters\./, ''), value])

const keywordsOf = (values, inputs) => parametersOf(values, inputs).map(([name, value]) => `${name}=${literal(value)}`)

/** A call in one line, or with an argument in each line where it would be too long. */
function callOf(name, positional, keywords, indent) {
  const values = [...positional, ...keywords]
  const space = ' '.repeat(indent)
  const line = `${space}${name}(${values.join(', ')})`
  if (line.length <= WIDTH) return line
  return `${space}${name}(\n${values.map(value => `${space}    ${value},\n`).join('')}${space})`
}

const indented = (lines, width = 4) => lines.map(line => ' '.repeat(width) + line)

/** A value as Python writes it. Texts in JSON are Python's, too. */
function literal(value) {
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`
  if (value && typeof value === 'object') {
    return `{${Object.entries(value).map(([name, item]) => `${literal(name)}: ${literal(item)}`).join(', ')}}`
  }
  return JSON.stringify(value)
}
