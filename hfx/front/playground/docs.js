// Every path of /openapi.json by the API that it belongs to, with the fields of its body.

import { byId, element } from './elements.js'

function type(schema) {
  if (schema.anyOf) return schema.anyOf.map(type).join(' or ')
  if (schema.enum) return schema.enum.join(' or ')
  if (schema.type === 'array') return `list of ${schema.items ? type(schema.items) : 'any'}`
  return schema.type ?? 'any'
}

function fields(schema, prefix = '') {
  if (schema.anyOf) return schema.anyOf.flatMap(one => fields(one, prefix))
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

const BELOW = '/models/{model}'
const { paths, tags } = await (await fetch('openapi.json')).json()
const groups = Object.fromEntries(tags.map(({ name }) => [name, []]))
for (const [path, methods] of Object.entries(paths)) {
  if (path.startsWith('/playground/') || (path.startsWith(BELOW) && path.slice(BELOW.length) in paths)) continue
  for (const [method, details] of Object.entries(methods)) {
    groups[details.tags[0]].push(operation(path, method, details))
  }
}
byId('paths').replaceChildren(
  element('p', {}, 'The paths of this server by API, with the fields of their bodies. Most of them also exist below ',
    element('code', {}, BELOW), ', where the path names the model. A server with API keys wants one in the header ',
    element('code', {}, 'Authorization: Bearer KEY'), '.'),
  ...tags.filter(({ name }) => groups[name].length).map(({ name, description }) =>
    element('section', {}, element('h2', {}, description), ...groups[name])))
