// The page: the list of models, the chosen one's form, and the answer to its request.

import { ANSWERS } from './answers.js'
import { isGenerator, requestOf } from './calls.js'
import { byId, element } from './elements.js'
import { controls, FieldError, values } from './form.js'
import { generate } from './generation.js'
import { json, key, RequestFailed, statistics, steps } from './requests.js'
import { snippets } from './snippets.js'
import { encoderTimes, generationTimes } from './timing.js'

const CHOSEN = '#model=' // of the address, before the name
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
    if (error.status === 401) askForKey(Boolean(key.get()))
    else notice(`The list of models can't be read: ${error.message}`)
    return
  }
  needsKey ||= Boolean(key.get())
  byId('key-form').hidden = true
  byId('key-given').hidden = !key.get()
  notice(models.length ? '' : 'No model is served.')
  listModels()
  choose()
}

function askForKey(isWrong) {
  needsKey = true
  models = []
  model = null
  key.set('')
  byId('key-form').hidden = false
  byId('key-given').hidden = true
  byId('model').hidden = true
  byId('models').replaceChildren()
  notice(isWrong ? 'The server does not know this key.' : 'This server wants an API key.')
  byId('key').focus()
}

function notice(text) {
  byId('notice').textContent = text
  byId('notice').hidden = !text
}

function listModels() {
  const tasks = [...new Set(models.map(each => each.task))]
  byId('models').replaceChildren(...tasks.map(task => {
    const links = models.filter(each => each.task === task).map(each => element('li', {},
      element('a', { href: addressOf(each) },
        element('span', {}, each.name), element('span', { class: 'precision' }, precisionOf(each)))))
    return element('section', {}, element('h2', {}, task), element('ul', {}, ...links))
  }))
}

const addressOf = each => CHOSEN + encodeURIComponent(each.name)

function precisionOf({ precision }) {
  if (!precision) return ''
  const { cpu, gpu } = precision
  return cpu && gpu && cpu !== gpu ? `${cpu} CPU, ${gpu} GPU` : cpu ?? gpu ?? ''
}

/** Show the model of the address, or the first one. */
function choose() {
  if (model && location.hash && !location.hash.startsWith(CHOSEN)) return // a link within the page
  const found = models.find(each => addressOf(each) === location.hash) ?? models[0]
  if (!found) return
  running?.abort()
  model = found
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
  let made
  try {
    const { read, request } = current()
    made = snippets(model, read, request, needsKey)
  } catch (error) {
    if (!(error instanceof FieldError)) throw error
    byId('code').textContent = error.message
    return
  }
  const shown = made.find(each => each.name === language) ?? made[0]
  const choices = made.map(({ name }) => element('span', {},
    element('input', { type: 'radio', name: 'language', id: `language-${name}`, value: name, checked: name === shown.name }),
    element('label', { for: `language-${name}` }, name)))
  const hadFocus = document.activeElement?.name === 'language'
  byId('languages').replaceChildren(...choices)
  if (hadFocus) byId(`language-${shown.name}`).focus()
  byId('code').textContent = shown.text
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
  const asked = model
  const prompt = model.task === PROMPTED && !request.isChat ? read.get('inputs') : ''
  const figures = await generate(request, prompt, byId('answer'), signal, performance.now())
  if (asked === model) times(generationTimes(figures))
}

async function runCall(request, read, signal) {
  const asked = model
  const before = await statistics()
  const began = performance.now()
  const answer = await json(request.path, request.body, signal)
  const total = performance.now() - began
  const show = ANSWERS[asked.task] ?? (content => [element('pre', {}, JSON.stringify(content, null, 2))])
  byId('answer').replaceChildren(...show(answer, read))
  times(...encoderTimes(total, null))
  const parts = await steps(asked.name, before)
  if (asked === model) times(...encoderTimes(total, parts))
}

function times(...made) {
  byId('timing').replaceChildren(...made)
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
    askForKey(true)
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
