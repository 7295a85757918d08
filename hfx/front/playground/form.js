// The form of a request, made of the fields that GET /models describes, and the values in it.

import { element } from './elements.js'

export class FieldError extends Error {}

const ROWS = { text: 4, lines: 3 }

/** Controls of `fields` with their labels and help. */
export function controls(fields) {
  return fields.map(field => {
    const id = `field-${field.path}`
    const help = helpOf(field)
    const described = help ? `${id}-help` : null
    const control = controlOf(field, { id, 'aria-describedby': described, required: field.is_required })
    return element('div', { class: `field ${field.kind}` },
      element('label', { for: id }, field.label),
      control,
      help ? element('p', { id: described, class: 'help' }, help) : null)
  })
}

/** The values of `fields` that are set, by their paths. Throws FieldError. */
export function values(fields) {
  const read = new Map()
  for (const field of fields) {
    const value = valueOf(field, document.getElementById(`field-${field.path}`).value)
    if (value !== undefined) read.set(field.path, value)
  }
  return read
}

function helpOf(field) {
  const help = field.help && field.help[0].toUpperCase() + field.help.slice(1)
  const isNumber = field.kind === 'integer' || field.kind === 'number'
  const allowed = isNumber ? field.allowed.replace(/^a (whole )?number (of )?/, '') : ''
  return [help, allowed].filter(Boolean).join(' · ')
}

function controlOf(field, attributes) {
  if (field.kind === 'choice') return choice(field, attributes)
  if (field.kind in ROWS) {
    const area = element('textarea', { ...attributes, rows: ROWS[field.kind], spellcheck: 'false' })
    area.value = field.value ?? ''
    return area
  }
  const isNumber = field.kind !== 'line'
  const input = element('input', {
    ...attributes,
    type: 'text',
    autocomplete: 'off',
    spellcheck: 'false',
    inputmode: isNumber ? 'decimal' : null,
    placeholder: textOf(field.default),
  })
  input.value = field.value ?? ''
  return input
}

function choice(field, attributes) {
  const unset = element('option', { value: '' }, textOf(field.default) ? `${textOf(field.default)} (default)` : 'not set')
  const options = field.choices.map((value, index) => element('option', { value: index }, textOf(value)))
  return element('select', attributes, unset, ...options)
}

function textOf(value) {
  return value === null || value === undefined || (Array.isArray(value) && !value.length) ? '' : String(value)
}

function valueOf(field, text) {
  if (field.kind === 'lines') {
    const lines = text.split('\n').map(line => line.trim()).filter(Boolean)
    if (lines.length) return lines
  } else if (text.trim() !== '') {
    if (field.kind === 'choice') return field.choices[Number(text)]
    return field.kind === 'integer' || field.kind === 'number' ? numberOf(field, text.trim()) : text
  }
  if (field.is_required) throw new FieldError(`${field.label} is empty.`)
  return undefined
}

function numberOf(field, text) {
  const value = Number(text)
  if (!Number.isFinite(value) || (Number.isInteger(value) && !Number.isSafeInteger(value))) {
    throw new FieldError(`${field.label} is ${text}; it must be ${field.allowed}, up to 2⁵³.`)
  }
  return value
}
