// Package oracle folds events of loan applications the plain way: native Go,
// encoding/json, everything in maps. It shares no code with the plugin, the SDK
// or the host, and says what their rows must be.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
)

// Event is a decoded event, in the order of the log.
type Event struct {
	AggregateType string
	AggregateID   string
	Type          string
	Data          []byte
	OccurredUS    int64 // microseconds since 1970, UTC
}

// Row is one row of a table. Two rows are the same if they are equal.
type Row struct {
	Key   string
	Child string // of a child table
	// JSON is the row as the HTTP interface spells it, columns in the order of
	// their declaration, without spaces.
	JSON string
}

// Fold collects what the tables hold after the events given to Add.
type Fold struct {
	applications map[string]*application
	resources    map[string]*resource
}

type application struct {
	amount       *string // at scale 2
	status       *string
	offers       int64
	events       int64
	first, last  int64
	lastResource *string
}

type resource struct {
	events int64
	last   int64
	seen   map[string]int64 // application → time of the first event
}

// New returns a fold of no events.
func New() *Fold {
	return &Fold{applications: map[string]*application{}, resources: map[string]*resource{}}
}

type payload struct {
	Resource any `json:"org:resource"`
	Case     struct {
		Amount *string `json:"AMOUNT_REQ"`
	} `json:"case"`
}

// Add folds the next event in.
func (f *Fold) Add(e Event) error {
	if e.AggregateType != "loan-application" {
		return nil
	}
	var p payload
	dec := json.NewDecoder(bytes.NewReader(e.Data))
	dec.UseNumber()
	if err := dec.Decode(&p); err != nil {
		return fmt.Errorf("event of %s: %w", e.AggregateID, err)
	}
	who := ""
	switch v := p.Resource.(type) {
	case nil:
	case string:
		who = v
	case json.Number:
		who = v.String()
	default:
		return fmt.Errorf("event of %s: org:resource is %v", e.AggregateID, v)
	}
	if err := f.addApplication(e, p, who); err != nil {
		return err
	}
	if who != "" {
		f.addResource(e, who)
	}
	return nil
}

func (f *Fold) addApplication(e Event, p payload, who string) error {
	a := f.applications[e.AggregateID]
	if a == nil {
		a = &application{first: e.OccurredUS}
		f.applications[e.AggregateID] = a
		if p.Case.Amount != nil {
			r, ok := new(big.Rat).SetString(*p.Case.Amount)
			if !ok {
				return fmt.Errorf("event of %s: AMOUNT_REQ is %q", e.AggregateID, *p.Case.Amount)
			}
			text := r.FloatString(2)
			a.amount = &text
		}
	}
	a.events++
	a.last = e.OccurredUS
	if strings.HasPrefix(e.Type, "A_") {
		a.status = &e.Type
	}
	if e.Type == "O_CREATED" {
		a.offers++
	}
	if who != "" {
		a.lastResource = &who
	}
	return nil
}

func (f *Fold) addResource(e Event, who string) {
	r := f.resources[who]
	if r == nil {
		r = &resource{seen: map[string]int64{}}
		f.resources[who] = r
	}
	r.events++
	r.last = e.OccurredUS
	if _, ok := r.seen[e.AggregateID]; !ok {
		r.seen[e.AggregateID] = e.OccurredUS
	}
}

// Tables returns the rows of each table in the order of their keys:
// "applications", "resources" and its child table "resource_applications".
func (f *Fold) Tables() map[string][]Row {
	tables := map[string][]Row{"applications": {}, "resources": {}, "resource_applications": {}}
	for _, key := range slices.Sorted(maps.Keys(f.applications)) {
		tables["applications"] = append(tables["applications"], Row{Key: key, JSON: f.applications[key].json()})
	}
	for _, key := range slices.Sorted(maps.Keys(f.resources)) {
		r := f.resources[key]
		tables["resources"] = append(tables["resources"], Row{Key: key, JSON: spell(
			member{"events", r.events}, member{"applications", len(r.seen)}, member{"last_at", spellTime(r.last)})})
		for _, child := range slices.Sorted(maps.Keys(r.seen)) {
			tables["resource_applications"] = append(tables["resource_applications"],
				Row{Key: key, Child: child, JSON: spell(member{"first_at", spellTime(r.seen[child])})})
		}
	}
	return tables
}

func (a *application) json() string {
	state := spell(member{"amount", a.amount}, member{"status", a.status}, member{"offers", a.offers},
		member{"events", a.events}, member{"last_resource", a.lastResource})
	return spell(
		member{"amount", a.amount}, member{"status", a.status}, member{"offers", a.offers}, member{"events", a.events},
		member{"first_at", spellTime(a.first)}, member{"last_at", spellTime(a.last)},
		member{"last_resource", a.lastResource}, member{"state", json.RawMessage(state)})
}

type member struct {
	name  string
	value any
}

// spell writes an object with its members in the order given.
func spell(members ...member) string {
	var b bytes.Buffer
	b.WriteByte('{')
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", m.name)
		if err := enc.Encode(m.value); err != nil {
			panic(err) // strings, numbers and JSON always encode
		}
		b.Truncate(b.Len() - 1) // the encoder's newline
	}
	b.WriteByte('}')
	return b.String()
}

func spellTime(us int64) string {
	return time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000000Z")
}
