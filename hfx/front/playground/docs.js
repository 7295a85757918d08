// Every path of /openapi.json, with the fields of its body.

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

function operation(path, method, { tags, summary, requestBody }) {
  const rows = requestBody ? fields(requestBody.content['application/json'].schema) : []
  return element('details', {},
    element('summary', {}, element('code', {}, `${method.toUpperCase()} ${path}`), ` ${tags.join(', ')}: ${summary}`),
    rows.length ? element('table', {}, ...rows) : null)
}

const { paths } = await (await fetch('openapi.json')).json()
byId('paths').replaceChildren(...Object.entries(paths).flatMap(([path, methods]) =>
  path.startsWith('/playground/') ? []
    : Object.entries(methods).map(([method, details]) => operation(path, method, details))))
