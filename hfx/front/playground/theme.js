// The button that changes between light and dark; the browser keeps the choice.

const STORED = 'hfx-theme'
const root = document.documentElement
const isDark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark'
const button = document.getElementById('theme')

function show(theme) {
  if (theme) root.dataset.theme = theme
  button.textContent = isDark() ? 'Light' : 'Dark'
}

button.addEventListener('click', () => {
  show(isDark() ? 'light' : 'dark')
  localStorage.setItem(STORED, root.dataset.theme)
})
show(localStorage.getItem(STORED))
