// Every path of /openapi.json by the API that it belongs to, with the fields of its body.

import { byId, element } from './elements.js'

function type(schema) {
  if (schema.anyOf) return schema.anyOf.map(type).join(' or ')
  if (schema.enum) return schema.enum.join(' or ')
  if (schema.type === 'array') return `list of ${schema.items ? type(schema.items) : 'any'}`
  return schema.type ?? 'any'
}

function fields(schema, prefix = '') {
  return Object.entries(schema.properties ?? {}).flatMap(([name, value]) => [
    element('tr', {},
      element('td', {}, element('code', {}, prefix + name)),
      element('td', {}, type(value) + (schema.required.includes(name) ? ', required' : '')),
      element('td', {}, value.description ?? '')),
    ...fields(value, `${prefix}${name}.`)])
}

function operation(path, method, { summary, requestBody }) {
  const rows = requestBody ? fields(requestBody.content['application/json'].schema) : []
  return element('details', {},
    element('summary', {}, element('code', {}, `${method.toUpperCase()} ${path}`), ` ${summary}`),
    rows.length ? element('table', {}, ...rows) : null)
}

const NAMES = {
  cohere: 'Cohere', huggingface: 'Hugging Face', jina: 'Jina', mlserver: 'MLServer', openai: 'OpenAI', vllm: 'vLLM',
}
const { paths } = await (await fetch('openapi.json')).json()
const groups = {}
for (const [path, methods] of Object.entries(paths)) {
  if (path.startsWith('/playground/')) continue
  for (const [method, details] of Object.entries(methods)) {
    (groups[NAMES[details.tags[0]] ?? details.tags[0]] ??= []).push(operation(path, method, details))
  }
}
byId('paths').replaceChildren(...Object.keys(groups).sort().map(name =>
  element('section', {}, element('h2', {}, name), ...groups[name])))
