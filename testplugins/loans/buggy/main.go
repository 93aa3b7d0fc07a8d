// Command buggy is plugin loans as it must not be: it declares the same and makes
// other rows, and child rows that are not there at all. So a test sees what is left of
// them once the right module has made the rows anew.
//
// Build: GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o loans.wasm ./testplugins/loans/buggy
package main

import (
	projhost "github.com/projhost/projhost/sdk/go"
)

// Application has the columns of plugin loans.
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

// Resource has those of its other projection.
type Resource struct {
	Events       int64
	Applications int64 `ph:"applications,index"`
	LastAt       projhost.Timestamp
}

// Seen has those of the children.
type Seen struct {
	FirstAt projhost.Timestamp
}

func main() {}

func init() {
	p := projhost.New("loans", "0.9.0")
	p.Heap(256 << 10)

	applications := projhost.NewProjection[Application](p, "applications",
		projhost.Input{AggregateTypes: []string{"loan-application"}})
	applications.OnAny(func(_ *projhost.Ctx, m *projhost.Message, a *Application) error {
		a.Events += 2
		a.FirstAt, a.LastAt = m.Time, m.Time
		a.Status = projhost.Some("WRONG")
		a.State = projhost.JSON(`{"wrong":true}`)
		return nil
	})

	resources := projhost.NewProjection[Resource](p, "resources", projhost.Input{
		AggregateTypes: []string{"loan-application"},
		Key:            projhost.Pointers("/org:resource"),
	})
	seen := projhost.NewChildren[Seen](resources, "resource_applications", projhost.ChildByAggregateID())
	resources.OnAny(func(c *projhost.Ctx, m *projhost.Message, r *Resource) error {
		r.Events += 3
		r.Applications++
		r.LastAt = m.Time
		seen.Put(c, "ghost of "+m.AggregateID, Seen{FirstAt: m.Time})
		return nil
	})
	projhost.Serve(p)
}
