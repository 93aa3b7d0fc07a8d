// Command journal keeps, for every stream, what it holds and its latest event as
// it was appended: nothing of it is left out or interpreted, so a database that
// changes a byte shows.
package main

import projhost "github.com/projhost/projhost/sdk/go"

// Entry is the row of an aggregate id.
type Entry struct {
	Events   int64
	Size     projhost.Decimal `ph:"size,precision=38,scale=19"`
	LastData string
	LastID   []byte `ph:"last_id"`
	LastAt   projhost.Timestamp
}

func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("journal", "1.0.0")
	journal := projhost.NewProjection[Entry](p, "journal")
	journal.OnAny(func(_ *projhost.Ctx, m *projhost.Message, row *Entry) error {
		row.Events++
		row.Size = row.Size.Add(projhost.NewDecimal(int64(len(m.Data)), 19))
		row.LastData = string(m.Data)
		row.LastID = append([]byte(nil), m.ID[:]...)
		row.LastAt = m.Time
		return nil
	})
	return p
}
