package projhost_test

import (
	"fmt"
	"testing"

	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/projhosttest"
)

// Order is one row of the read model; its fields are the columns.
type Order struct {
	Customer  string           `ph:"customer,index,max=100"`
	Total     projhost.Decimal `ph:"total,precision=19,scale=2"`
	Lines     int64
	ShippedAt projhost.Null[projhost.Timestamp]
}

func orders() *projhost.Plugin {
	p := projhost.New("orders", "1.0.0")
	orders := projhost.NewProjection[Order](p, "orders", projhost.Input{AggregateTypes: []string{"order"}})
	orders.On("placed", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
		o.Customer = m.JSON().Get("customer").Str()
		return nil
	})
	orders.On("line_added", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
		price, err := projhost.DecimalOf(m.JSON().Get("price"))
		if err != nil {
			return projhost.Reject("price: " + err.Error())
		}
		o.Total = o.Total.Add(price)
		o.Lines++
		return nil
	})
	orders.On("shipped", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
		o.ShippedAt = projhost.Some(m.Time)
		return nil
	})
	return p
}

func Example() {
	h := projhosttest.New(new(testing.T), orders()) // a test passes its own t
	h.Apply(
		projhosttest.Event{AggregateType: "order", AggregateID: "A-7", Type: "placed", Data: `{"customer":"Ada"}`},
		projhosttest.Event{AggregateType: "order", AggregateID: "A-7", Type: "line_added", Data: `{"price":"12.50"}`},
		projhosttest.Event{AggregateType: "order", AggregateID: "A-7", Type: "line_added", Data: `{"price":7.5}`},
	)
	fmt.Println(h.Row("orders", "A-7"))

	err := h.Try(projhosttest.Event{AggregateType: "order", AggregateID: "A-7", Type: "line_added", Data: `{}`})
	fmt.Println(err)
	// Output:
	// {"customer":"Ada","total":"20.00","lines":2,"shipped_at":null}
	// projection orders: line_added order/A-7: reject: price: want a number, have absent
}

// Likes counts per post who liked it, each person once.
func ExampleNewChildren() {
	type Post struct{ Likes int64 }
	type Like struct{ At projhost.Timestamp }

	p := projhost.New("likes", "1.0.0")
	posts := projhost.NewProjection[Post](p, "posts", projhost.Input{Key: projhost.Pointers("/post")})
	likes := projhost.NewChildren[Like](posts, "post_likes", projhost.ChildByPointer("/by"))
	posts.On("liked", func(c *projhost.Ctx, m *projhost.Message, post *Post) error {
		by := m.JSON().Get("by").Str()
		if _, already := likes.Get(c, by); already {
			return projhost.Ignore
		}
		likes.Put(c, by, Like{At: m.Time})
		post.Likes++
		return nil
	})

	h := projhosttest.New(new(testing.T), p)
	for _, by := range []string{"ada", "grace", "ada"} {
		h.Apply(projhosttest.Event{AggregateType: "user", AggregateID: by, Type: "liked", Data: `{"post":"P-1","by":"` + by + `"}`})
	}
	fmt.Println(h.Row("posts", "P-1"))
	for _, like := range h.Rows("post_likes") {
		fmt.Println(like)
	}
	// Output:
	// {"likes":2}
	// {"key":"P-1","child":"ada","row":{"at":"2026-01-01T00:00:01.000000Z"}}
	// {"key":"P-1","child":"grace","row":{"at":"2026-01-01T00:00:02.000000Z"}}
}
