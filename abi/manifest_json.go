package abi

import "strconv"

// AppendJSON appends the manifest as JSON, without reflection: a guest's
// ph_describe answers with it. Members that have their default are left out.
func (m *Manifest) AppendJSON(dst []byte) []byte {
	w := jsonWriter{dst}
	w.open('{')
	w.integer("abi", m.ABI)
	w.text("name", m.Name)
	w.text("version", m.Version)
	w.name("consumers")
	w.open('[')
	for i := range m.Consumers {
		w.comma()
		w.consumer(&m.Consumers[i])
	}
	w.close(']')
	w.texts("capabilities", m.Capabilities)
	w.optional("heap", m.Heap)
	w.close('}')
	return w.b
}

// MarshalJSON gives the form of ABI v1.
func (k KeyRule) MarshalJSON() ([]byte, error) { return k.appendJSON(nil), nil }

// IsZero tells whether there is no rule.
func (k KeyRule) IsZero() bool { return k.Kind == KeyNone }

func (k KeyRule) appendJSON(dst []byte) []byte {
	switch {
	case k.Kind == KeyAggregateID:
		return append(dst, `"aggregate_id"`...)
	case k.Kind == KeyFunction:
		return append(dst, `"function"`...)
	case k.Kind == KeyPointers && len(k.Pointers) == 1:
		return append(appendQuoted(append(dst, `{"pointer":`...), k.Pointers[0]), '}')
	case k.Kind == KeyPointers:
		w := jsonWriter{append(dst, '{')}
		w.list("pointers", k.Pointers)
		w.close('}')
		return w.b
	}
	return append(dst, "null"...)
}

// MarshalJSON gives the JSON as it is spelled.
func (r RawJSON) MarshalJSON() ([]byte, error) {
	if r == nil {
		return []byte("null"), nil
	}
	return r, nil
}

// UnmarshalJSON keeps the JSON as it is spelled.
func (r *RawJSON) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}

// jsonWriter appends JSON; it puts commas where one is needed.
type jsonWriter struct{ b []byte }

func (w *jsonWriter) comma() {
	switch w.b[len(w.b)-1] {
	case '{', '[', ':':
	default:
		w.b = append(w.b, ',')
	}
}

func (w *jsonWriter) open(c byte)  { w.b = append(w.b, c) }
func (w *jsonWriter) close(c byte) { w.b = append(w.b, c) }

func (w *jsonWriter) name(name string) {
	w.comma()
	w.b = append(appendQuoted(w.b, name), ':')
}

func (w *jsonWriter) text(name, s string) {
	w.name(name)
	w.b = appendQuoted(w.b, s)
}

func (w *jsonWriter) optional(name, s string) {
	if s != "" {
		w.text(name, s)
	}
}

func (w *jsonWriter) integer(name string, n int) {
	w.name(name)
	w.b = strconv.AppendInt(w.b, int64(n), 10)
}

func (w *jsonWriter) positive(name string, n int) {
	if n != 0 {
		w.integer(name, n)
	}
}

func (w *jsonWriter) boolean(name string, b bool) {
	w.name(name)
	w.b = strconv.AppendBool(w.b, b)
}

func (w *jsonWriter) flag(name string, b bool) {
	if b {
		w.boolean(name, b)
	}
}

func (w *jsonWriter) list(name string, list []string) {
	w.name(name)
	w.open('[')
	for _, s := range list {
		w.comma()
		w.b = appendQuoted(w.b, s)
	}
	w.close(']')
}

func (w *jsonWriter) texts(name string, list []string) {
	if len(list) > 0 {
		w.list(name, list)
	}
}

func (w *jsonWriter) rule(name string, k KeyRule) {
	w.name(name)
	w.b = k.appendJSON(w.b)
}

func (w *jsonWriter) consumer(c *Consumer) {
	w.open('{')
	w.text("type", c.Type)
	w.text("name", c.Name)
	w.texts("aliases", c.Aliases)
	w.name("inputs")
	w.open('[')
	for i := range c.Inputs {
		w.comma()
		w.input(&c.Inputs[i])
	}
	w.close(']')
	if len(c.Tables) > 0 {
		w.name("tables")
		w.open('[')
		for i := range c.Tables {
			w.comma()
			w.table(&c.Tables[i])
		}
		w.close(']')
	}
	w.optional("distribution", c.Distribution)
	w.flag("ignore_on_replay", c.IgnoreOnReplay)
	w.positive("state_version", c.StateVersion)
	w.close('}')
}

func (w *jsonWriter) input(in *Input) {
	w.open('{')
	w.text("topic", in.Topic)
	w.texts("aggregate_types", in.AggregateTypes)
	w.list("types", in.Types)
	if !in.Key.IsZero() {
		w.rule("key", in.Key)
	}
	w.positive("keys_version", in.KeysVersion)
	if len(in.Associations) > 0 {
		w.name("associations")
		w.open('{')
		for _, name := range sortedNames(in.Associations) {
			w.text(name, in.Associations[name])
		}
		w.close('}')
	}
	w.close('}')
}

func (w *jsonWriter) table(t *Table) {
	w.open('{')
	w.text("name", t.Name)
	w.optional("parent", t.Parent)
	if t.Child != nil {
		w.rule("child", *t.Child)
	}
	w.flag("free", t.Free)
	w.name("columns")
	w.open('[')
	for i := range t.Columns {
		w.comma()
		w.column(&t.Columns[i])
	}
	w.close(']')
	w.close('}')
}

func (w *jsonWriter) column(c *Column) {
	w.open('{')
	w.text("name", c.Name)
	w.text("kind", c.Kind)
	w.positive("max", c.Max)
	w.positive("precision", c.Precision)
	w.positive("scale", c.Scale)
	w.flag("index", c.Index)
	w.flag("unique", c.Unique)
	if c.Null != nil {
		w.boolean("null", *c.Null)
	}
	if c.Default != nil {
		w.name("default")
		w.b = append(w.b, c.Default...)
	}
	w.optional("from", c.From)
	w.optional("of", c.Of)
	w.close('}')
}
