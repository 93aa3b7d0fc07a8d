//go:build !wasip1

package projhost

// scribble spoils what a handler may not keep, so that a kept view fails the
// plugin's own test.
func scribble(c *Ctx) {
	for i := range c.arena {
		c.arena[i] = 0xDB
	}
	for _, w := range c.writers[:c.writing] {
		b := w.Bytes()
		for i := range b {
			b[i] = 0xDB
		}
	}
}
