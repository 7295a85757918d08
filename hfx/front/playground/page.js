// The page: the list of models, the chosen one's form, and the answer to its request.

import { ANSWERS } from './answers.js'
import { isGenerator, requestOf } from './calls.js'
import { showCut } from './cut.js'
import { byId, element } from './elements.js'
import { controls, FieldError, values } from './form.js'
import { generate } from './generation.js'
import { json, key, RequestFailed, statistics, steps } from './requests.js'
import { snippets } from './snippets.js'
import { encoderTimes, generationTimes } from './timing.js'

const CHOSEN = '#model=' // of the address, before the name
const LAST = 'hfx-model' // the name of the model that was used last, which the browser keeps
const MANY = 8 // models, above which the list has a search
const PROMPTED = 'text-generation' // whose texts continue the prompt

let models = []
let model = null
let needsKey = false
let running = null // the AbortController of the request in progress
let language = 'curl'

async function load() {
  try {
    models = (await json('models')).models
  } catch (error) {
    if (error.status === 401) requestKey(Boolean(key.get()))
    else notice(`The list of models can't be read: ${error.message}`)
    return
  }
  needsKey ||= Boolean(key.get())
  byId('metrics').hidden = needsKey // a link sends no key
  byId('key-form').hidden = true
  byId('key-stored').hidden = !key.get()
  notice(models.length ? '' : 'No model is served.')
  listModels()
  choose()
}

function requestKey(isWrong) {
  needsKey = true
  byId('metrics').hidden = true
  models = []
  model = null
  key.set('')
  byId('key-form').hidden = false
  byId('key-stored').hidden = true
  byId('model').hidden = true
  byId('models').replaceChildren()
  notice(isWrong ? 'This key is not valid.' : 'This server needs an API key.')
  byId('key').focus()
}

function notice(text) {
  byId('notice').textContent = text
  byId('notice').hidden = !text
}

function listModels() {
  const tasks = [...new Set(models.map(({ task }) => task))]
  byId('models').replaceChildren(...tasks.map(task => {
    const links = models.filter(row => row.task === task).map(row => element('li', {},
      element('a', { href: addressOf(row) },
        element('span', {}, row.name), element('span', { class: 'precision' }, precisionOf(row)))))
    return element('section', {}, element('h2', {}, task), element('ul', {}, ...links))
  }))
  if (models.length > MANY) byId('models').prepend(search())
}

function search() {
  const input = element('input', { type: 'search', id: 'search' })
  input.addEventListener('input', () => {
    const words = input.value.toLowerCase().split(/\s+/)
    for (const section of byId('models').querySelectorAll('section')) {
      const rows = [...section.querySelectorAll('li')]
      const task = section.querySelector('h2').textContent
      for (const row of rows) row.hidden = !words.every(word => `${task} ${row.textContent}`.toLowerCase().includes(word))
      section.hidden = rows.every(row => row.hidden)
    }
  })
  return element('p', { class: 'search' }, element('label', { for: 'search' }, 'Find a model'), input)
}

function nameOf(hash) {
  try {
    return decodeURIComponent(hash.slice(CHOSEN.length))
  } catch { // a stray %
    return hash.slice(CHOSEN.length)
  }
}

const addressOf = ({ name }) => CHOSEN + encodeURIComponent(name)

function precisionOf({ precision }) {
  if (!precision) return ''
  const { cpu, gpu } = precision
  return cpu && gpu && cpu !== gpu ? `${cpu} CPU, ${gpu} GPU` : cpu ?? gpu ?? ''
}

/** Show the model of the address, or the one that was used last, or the first one. */
function choose() {
  if (model && location.hash && !location.hash.startsWith(CHOSEN)) return // a link within the page
  const last = location.hash ? null : localStorage.getItem(LAST)
  const named = models.find(row => addressOf(row) === location.hash || row.name === last)
  const isWrong = models.length && !named && location.hash.startsWith(CHOSEN)
  if (models.length) notice(isWrong ? `There is no model ${nameOf(location.hash)}. Choose one of those that are served.` : '')
  const chosen = named ?? models[0]
  if (!chosen) return
  running?.abort()
  if (isWrong) {
    model = null
    byId('model').hidden = true
    for (const link of document.querySelectorAll('#models a')) link.removeAttribute('aria-current')
    return
  }
  model = chosen
  localStorage.setItem(LAST, model.name)
  for (const link of document.querySelectorAll('#models a')) {
    const isChosen = link.getAttribute('href') === addressOf(model)
    if (isChosen) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
    if (isChosen) link.scrollIntoView({ block: 'nearest', inline: 'center' })
  }
  document.title = `${model.name} – hfx playground`
  showModel()
}

function showModel() {
  byId('name').textContent = model.name
  byId('about').textContent = [model.task, precisionOf(model), model.source].filter(Boolean).join(' · ')
  const isInput = field => !isGenerator(model) || !field.path.startsWith('parameters.')
  const settings = model.fields.filter(field => !isInput(field))
  const chat = element('p', { class: 'check' }, element('input', { type: 'checkbox', id: 'chat', checked: true }),
    element('label', { for: 'chat' }, 'Use the chat template'))
  byId('inputs').replaceChildren(...controls(model.fields.filter(isInput)), ...(model.has_chat ? [chat] : []))
  byId('common').replaceChildren(...controls(settings.filter(field => field.is_common)))
  byId('others').querySelector('.grid').replaceChildren(...controls(settings.filter(field => !field.is_common)))
  byId('settings').hidden = !settings.length
  byId('answer').replaceChildren(element('p', { class: 'muted' }, 'Run the request to see the answer of the model.'))
  byId('time').hidden = true
  byId('error').hidden = true
  byId('model').hidden = false
  showCode()
}

/** The request of the form. Throws FieldError. */
function current() {
  const read = values(model.fields)
  return { read, request: requestOf(model, read, byId('chat')?.checked ?? false) }
}

function showCode() {
  let codes
  try {
    const { read, request } = current()
    codes = snippets(model, read, request, needsKey)
    showCut(model, read)
  } catch (error) {
    if (!(error instanceof FieldError)) throw error
    byId('code').textContent = error.message
    return
  }
  const chosen = codes.find(({ name }) => name === language) ?? codes[0]
  const choices = codes.map(({ name }) => element('span', {},
    element('input', { type: 'radio', name: 'language', id: `language-${name}`, value: name, checked: name === chosen.name }),
    element('label', { for: `language-${name}` }, name)))
  const hadFocus = document.activeElement?.name === 'language'
  byId('languages').replaceChildren(...choices)
  if (hadFocus) byId(`language-${chosen.name}`).focus()
  byId('code').textContent = chosen.text
  byId('code-note').textContent = needsKey ? 'The key is read from the environment: export HFX_TOKEN=KEY first.' : ''
}

async function run() {
  if (running) return
  const controller = (running = new AbortController())
  busy(true)
  byId('error').hidden = true
  byId('time').hidden = true
  try {
    const { read, request } = current()
    await (request.streams ? runStream(request, read, controller.signal) : runCall(request, read, controller.signal))
  } catch (error) {
    if (error.name !== 'AbortError') fail(error)
  } finally {
    running = null
    busy(false)
  }
}

async function runStream(request, read, signal) {
  const requested = model
  const prompt = model.task === PROMPTED && !request.isChat ? read.get('inputs') : ''
  const figures = await generate(request, prompt, byId('answer'), signal, performance.now())
  if (requested === model) times(generationTimes(figures))
}

async function runCall(request, read, signal) {
  const requested = model
  const before = await statistics()
  const began = performance.now()
  const answer = await json(request.path, request.body, signal)
  const total = performance.now() - began
  const show = ANSWERS[requested.task] ?? (content => [element('pre', {}, JSON.stringify(content, null, 2))])
  byId('answer').replaceChildren(...show(answer, read))
  times(...encoderTimes(total, null))
  const parts = await steps(requested.name, before)
  if (requested === model) times(...encoderTimes(total, parts))
}

function times(...nodes) {
  byId('timing').replaceChildren(...nodes)
  byId('time').hidden = false
}

function busy(isBusy) {
  if (!isBusy && document.activeElement === byId('stop')) byId('run').focus() // a disabled button has no focus
  byId('run').setAttribute('aria-disabled', String(isBusy))
  byId('stop').disabled = !isBusy
  byId('answer').setAttribute('aria-busy', String(isBusy))
  document.body.dataset.state = isBusy ? 'running' : 'idle'
}

function fail(error) {
  if (error.status === 401) {
    requestKey(true)
    return
  }
  if (error.status) byId('answer').replaceChildren()
  const isOwn = error instanceof RequestFailed || error instanceof FieldError
  const status = error.status ? ` (status ${error.status})` : ''
  byId('error').textContent = isOwn ? error.message + status : `The server can't be reached: ${error.message}.`
  byId('error').hidden = false
}

async function copy() {
  const text = byId('code').textContent
  if (navigator.clipboard) await navigator.clipboard.writeText(text)
  else { // a page without TLS has no clipboard
    getSelection().selectAllChildren(byId('code'))
    document.execCommand('copy')
  }
  byId('copy').textContent = 'Copied'
  setTimeout(() => { byId('copy').textContent = 'Copy' }, 1500)
}

byId('request').addEventListener('submit', event => { event.preventDefault(); run() })
byId('request').addEventListener('input', showCode)
byId('request').addEventListener('keydown', event => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run() }
})
byId('stop').addEventListener('click', () => running?.abort())
byId('copy').addEventListener('click', copy)
byId('languages').addEventListener('change', event => { language = event.target.value; showCode() })
byId('key-form').addEventListener('submit', async event => {
  event.preventDefault()
  key.set(byId('key').value.trim())
  byId('key').value = ''
  await load()
  if (model) byId('inputs').querySelector('input, textarea').focus()
})
byId('forget').addEventListener('click', () => { key.set(''); load() })
addEventListener('hashchange', choose)
busy(false)
load()
