// Command mended is the plugin poison with its faults taken out: the same
// consumer and table, and every message counts.
package main

import projhost "github.com/projhost/projhost/sdk/go"

// Count is the row of a key, as poison has it.
type Count struct {
	Events   int64
	LastData string           `ph:"last_data,max=200"`
	Amount   projhost.Decimal `ph:"amount,precision=10,scale=2"`
}

func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("poison", "1.0.1")
	poison := projhost.NewProjection[Count](p, "poison")
	poison.OnAny(func(_ *projhost.Ctx, m *projhost.Message, row *Count) error {
		row.Events++
		row.LastData = string(m.Data)
		return nil
	})
	return p
}
