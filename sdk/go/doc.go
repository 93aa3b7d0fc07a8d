// Package projhost is what a plugin of projhost is written with in Go: a read
// model as a struct, and a function for each type of event that changes it. The
// host feeds the events in order, keeps the rows in the user's database and
// commits them with its own progress, so that each event counts exactly once.
//
// # A plugin in five minutes
//
// In a folder of its own (any module, this one as its dependency):
//
//	package main
//
//	import projhost "github.com/projhost/projhost/sdk/go"
//
//	// Order is one row of the read model; its fields are the columns.
//	type Order struct {
//		Customer string           `ph:"customer,index,max=100"`
//		Total    projhost.Decimal `ph:"total,precision=19,scale=2"`
//		Lines    int64
//		ShippedAt projhost.Null[projhost.Timestamp]
//	}
//
//	func main() {} // never run: the host calls the module's exports
//
//	func init() { projhost.Serve(plugin()) }
//
//	func plugin() *projhost.Plugin {
//		p := projhost.New("orders", "1.0.0")
//		orders := projhost.NewProjection[Order](p, "orders", projhost.Input{AggregateTypes: []string{"order"}})
//		orders.On("placed", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
//			o.Customer = m.JSON().Get("customer").Str()
//			return nil
//		})
//		orders.On("line_added", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
//			price, err := projhost.DecimalOf(m.JSON().Get("price"))
//			if err != nil {
//				return projhost.Reject("price: " + err.Error())
//			}
//			o.Total = o.Total.Add(price)
//			o.Lines++
//			return nil
//		})
//		orders.On("shipped", func(c *projhost.Ctx, m *projhost.Message, o *Order) error {
//			o.ShippedAt = projhost.Some(m.Time)
//			return nil
//		})
//		return p
//	}
//
// It is tested like any Go, with package projhosttest, and built with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o orders.wasm .
//
// # Rules
//
// A handler depends on its message, its rows and the plugin's config, and on
// nothing else: there is no clock (a message has the time when it happened), no
// network, and random bytes are a function of the message. The host starts each
// batch from the state the plugin had after its start, so a global variable
// that counts messages counts wrong.
//
// What a handler is given lives until it returns: the message, its data and
// strings, and the strings and bytes of rows are views of memory that the next
// entry uses again. Assigning them to a row that is written is fine; keeping
// them elsewhere needs strings.Clone.
//
// # Speed
//
// An event costs a microsecond or two if its handler leaves no garbage. Package
// json of this SDK reads payloads without any; encoding/json, fmt and maps leave
// a lot. When garbage fills the module's spare memory, the collector runs in the
// middle of a batch, and when memory grows, the host must replace the instance;
// see [Plugin.Heap].
//
// # What can go wrong
//
// An error of a handler fails its message: [Reject], [Fatal], [Retry], or any
// other error, which counts as Reject. [Ignore] is no failure. A panic is told
// to the host with its text, file and line before the instance is thrown away.
package projhost
