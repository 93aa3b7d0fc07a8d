package rules

import "sync"

// Wakes tells readers within the process of appends. The zero value is ready.
type Wakes struct {
	mu    sync.Mutex
	chans map[string]chan struct{}
}

// Wait returns the channel that the next wake of the topic closes.
func (w *Wakes) Wait(topic string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.chans[topic]
	if c == nil {
		if w.chans == nil {
			w.chans = map[string]chan struct{}{}
		}
		c = make(chan struct{})
		w.chans[topic] = c
	}
	return c
}

// Wake closes the channel that waiters of the topic hold.
func (w *Wakes) Wake(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.chans[topic]; c != nil {
		close(c)
		delete(w.chans, topic)
	}
}
