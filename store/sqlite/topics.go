package sqlite

import "sync"

// wakes tells readers within the process of appends.
type wakes struct {
	mu    sync.Mutex
	chans map[string]chan struct{}
}

// wait returns the channel that the next wake of the topic closes.
func (w *wakes) wait(topic string) <-chan struct{} {
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

func (w *wakes) wake(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.chans[topic]; c != nil {
		close(c)
		delete(w.chans, topic)
	}
}

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.wakes.wait(topic) }
