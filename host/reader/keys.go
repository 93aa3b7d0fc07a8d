package reader

import (
	"fmt"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store"
)

// match is the input that takes a message, and the index of the message's type
// in the input's list.
type match struct {
	input uint16
	typ   uint16
	ok    bool
}

// resolver tells which input of a consumer takes a message of a topic, and
// which keys the message has by that input's rule.
type resolver struct {
	topic    string
	consumer *abi.Consumer
	pointers []*abi.Pointers // by input; nil where the rule is another
	// matches holds the answer for each pair of aggregate type and type seen.
	// Both name kinds, of which a log has few; should it have many, the map is
	// begun anew.
	matches map[kindOf]match

	found []abi.PointerResult
	keys  []key
}

type kindOf struct{ aggregateType, typ string }

// key is one key of a message. A key that can be told but not stored is a
// stand-in: no row can have it, so the entry cannot be applied.
type key struct {
	key     string
	standIn bool
}

const matchesMax = 4096

func newResolver(topic string, consumer *abi.Consumer) (*resolver, error) {
	r := &resolver{
		topic: topic, consumer: consumer, matches: make(map[kindOf]match),
		pointers: make([]*abi.Pointers, len(consumer.Inputs)),
	}
	for i := range consumer.Inputs {
		in := &consumer.Inputs[i]
		if in.Topic != topic || in.Key.Kind != abi.KeyPointers {
			continue
		}
		p, err := abi.CompilePointers(in.Key.Pointers...)
		if err != nil {
			return nil, fmt.Errorf("key of input %d: %w", i, err)
		}
		r.pointers[i] = p
	}
	return r, nil
}

// match finds the input that takes a message.
func (r *resolver) match(e *store.Event) match {
	kind := kindOf{e.AggregateType, e.Type}
	if m, ok := r.matches[kind]; ok {
		return m
	}
	var m match
	m.input, m.typ, m.ok = r.consumer.Match(r.topic, e.AggregateType, e.Type)
	if len(r.matches) >= matchesMax {
		clear(r.matches)
	}
	// The event's strings may share memory with its page: keep copies.
	r.matches[kindOf{strings.Clone(e.AggregateType), strings.Clone(e.Type)}] = m
	return m
}

// rule is the kind of key rule of the input that takes a message.
func (r *resolver) rule(m match) abi.KeyKind { return r.consumer.Inputs[m.input].Key.Kind }

// native tells whether all messages of the topic have the stream's id as their key.
func (r *resolver) native() bool {
	for i := range r.consumer.Inputs {
		if in := &r.consumer.Inputs[i]; in.Topic == r.topic && in.Key.Kind != abi.KeyAggregateID {
			return false
		}
	}
	return true
}

// resolve puts a message's keys into r.keys. They are a set: a key named twice
// is one key, at its first place. A text is the reason why they cannot be told.
// told are the guest's answers, for rules that ask it.
func (r *resolver) resolve(e *store.Event, m match, told []key) (problem string) {
	r.keys = r.keys[:0]
	switch r.rule(m) {
	case abi.KeyAggregateID:
		r.keys = append(r.keys, key{key: e.AggregateID})
	case abi.KeyPointers:
		p := r.pointers[m.input]
		r.found = p.Extract(r.found[:0], e.Data)
		for i := range r.found {
			switch f := &r.found[i]; f.State {
			case abi.PointerKey:
				r.add(f.Key, f.StandIn)
			case abi.PointerUnresolved:
				return fmt.Sprintf("at %s the payload has neither a text nor a number, or is not JSON",
					r.consumer.Inputs[m.input].Key.Pointers[i])
			}
		}
	case abi.KeyFunction:
		for _, k := range told {
			r.add(k.key, k.standIn)
		}
	}
	if len(r.keys) > abi.MaxKeys {
		return fmt.Sprintf("it has %d keys, at most %d are allowed", len(r.keys), abi.MaxKeys)
	}
	return ""
}

func (r *resolver) add(k string, standIn bool) {
	for i := range r.keys {
		if r.keys[i].key == k {
			return
		}
	}
	r.keys = append(r.keys, key{k, standIn})
}
