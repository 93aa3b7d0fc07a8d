// Command loans projects the events of loan applications at a bank: what became
// of each application, and what each member of staff has worked on.
//
// Build: GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o loans.wasm ./testplugins/loans
package main

import (
	"strings"

	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/json"
)

// Application is a loan application, keyed by its stream.
type Application struct {
	Amount       projhost.Null[projhost.Decimal] `ph:"amount,precision=19,scale=2"`
	Status       projhost.Null[string]           `ph:"status,index,max=64"`
	Offers       int64
	Events       int64
	FirstAt      projhost.Timestamp
	LastAt       projhost.Timestamp
	LastResource projhost.Null[string] `ph:"last_resource,index,max=64"`
	State        projhost.JSON
}

// Resource is a member of staff, keyed by what events name as their resource: so
// it crosses applications.
type Resource struct {
	Events       int64
	Applications int64 `ph:"applications,index"`
	LastAt       projhost.Timestamp
}

// Seen says that a resource has worked on an application, which is the child
// key. Counting rows instead of keeping them would count an application twice.
type Seen struct {
	FirstAt projhost.Timestamp
}

var amountRequested = json.MustPointer("/case/AMOUNT_REQ")

func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("loans", "1.0.0")
	p.Heap(256 << 10) // its handlers leave no garbage

	applications := projhost.NewProjection[Application](p, "applications",
		projhost.Input{AggregateTypes: []string{"loan-application"}})
	applications.OnAny(apply)

	resources := projhost.NewProjection[Resource](p, "resources", projhost.Input{
		AggregateTypes: []string{"loan-application"},
		Key:            projhost.Pointers("/org:resource"),
	})
	seen := projhost.NewChildren[Seen](resources, "resource_applications", projhost.ChildByAggregateID())
	resources.OnAny(func(c *projhost.Ctx, m *projhost.Message, r *Resource) error {
		r.Events++
		r.LastAt = m.Time
		if _, ok := seen.Get(c, m.AggregateID); !ok {
			seen.Put(c, m.AggregateID, Seen{FirstAt: m.Time})
			r.Applications++
		}
		return nil
	})
	return p
}

func apply(c *projhost.Ctx, m *projhost.Message, a *Application) error {
	data := m.JSON()
	if !c.Exists() {
		a.FirstAt = m.Time
		if requested := data.Find(amountRequested); requested.Exists() && !requested.IsNull() {
			amount, err := projhost.DecimalOf(requested)
			if err != nil {
				return projhost.Reject("/case/AMOUNT_REQ: " + err.Error())
			}
			cents, ok := amount.Rescale(2)
			if !ok {
				return projhost.Reject("/case/AMOUNT_REQ: " + amount.String() + " has more than 2 digits behind the point")
			}
			a.Amount = projhost.Some(cents)
		}
	}
	a.Events++
	a.LastAt = m.Time
	switch {
	case strings.HasPrefix(m.Type, "A_"):
		a.Status = projhost.Some(m.Type)
	case m.Type == "O_CREATED":
		a.Offers++
	}
	resource, err := resourceOf(data)
	if err != nil {
		return err
	}
	if resource != "" {
		a.LastResource = projhost.Some(resource)
	}
	a.State = a.state(c.JSON())
	return nil
}

// resourceOf reads who worked on an event as the host reads it for a key: a
// string or a number as it is spelled; null, nothing and "" are nobody.
func resourceOf(data json.Value) (string, error) {
	resource := data.Get("org:resource")
	switch resource.Kind() {
	case json.String, json.Absent, json.Null:
		return resource.Str(), nil
	case json.Number:
		return resource.Raw(), nil
	}
	return "", projhost.Reject("/org:resource is " + resource.Kind().String())
}

// state is the row as one document.
func (a *Application) state(w *json.Writer) projhost.JSON {
	w.BeginObject()
	w.Name("amount")
	if a.Amount.Valid {
		a.Amount.V.WriteJSON(w)
	} else {
		w.Null()
	}
	w.Name("status")
	optional(w, a.Status)
	w.Name("offers").Int(a.Offers)
	w.Name("events").Int(a.Events)
	w.Name("last_resource")
	optional(w, a.LastResource)
	w.EndObject()
	return w.Bytes()
}

func optional(w *json.Writer, s projhost.Null[string]) {
	if s.Valid {
		w.String(s.V)
		return
	}
	w.Null()
}
