package host_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/store"
)

func declaration() *abi.Consumer {
	return &abi.Consumer{
		Type: abi.Projection, Name: "orders", Distribution: abi.Spread,
		Inputs: []abi.Input{
			{Topic: "events", AggregateTypes: []string{"order"}, Types: []string{"placed", "paid"}, Key: abi.KeyRule{Kind: abi.KeyAggregateID}},
			{Topic: "events", Types: []string{"shipped"}, Key: abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/order"}}},
		},
		Tables: []abi.Table{
			{Name: "orders", Columns: []abi.Column{{Name: "total", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2}, {Name: "state", Kind: abi.ColumnText, Max: 20, Index: true}}},
			{Name: "lines", Parent: "orders", Child: &abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/line"}}, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt, Default: abi.RawJSON("1")}}},
		},
	}
}

// These hashes are stored: with others every consumer of every database would
// halt at its next start. A change of the rules is a new FingerprintVersion.
func TestFingerprintGolden(t *testing.T) {
	t.Parallel()
	require.Equal(t, store.Fingerprint{
		Version: 1,
		Inputs:  "94c91b0d3f9fffbf7e28e188a13fcb913b5d1220646f150bac5e0bb345b71023",
		Keys:    "9a63747757c4eb741c5ce8fb4f214698884d8e3e7ff0c530486a4afe86409f27",
		Tables:  "a12940aa59b55a5f5c01c56ec11777cba6dd27eb295d6d56a2ea5ac715de837a",
		Logic:   "3efd5c24ee250ee5d29881948b5daaa1bffa89fa9227bf33debfe84cf00a42e5",
	}, host.Fingerprint(declaration(), false, "sha256:00", []byte(`{"currency":"EUR"}`)))
}

// Each part of a declaration changes its own hash and no other.
func TestFingerprintParts(t *testing.T) {
	t.Parallel()
	base := host.Fingerprint(declaration(), false, "sha256:00", nil)
	parts := func(f store.Fingerprint) []string {
		var changed []string
		for name, pair := range map[string][2]string{
			"inputs": {base.Inputs, f.Inputs}, "keys": {base.Keys, f.Keys}, "tables": {base.Tables, f.Tables}, "logic": {base.Logic, f.Logic},
		} {
			if pair[0] != pair[1] {
				changed = append(changed, name)
			}
		}
		return changed
	}
	for name, change := range map[string]func(c *abi.Consumer){
		"inputs": func(c *abi.Consumer) { c.Inputs[0].Types = []string{"placed"} },
		"keys":   func(c *abi.Consumer) { c.Inputs[1].Key.Pointers = []string{"/id"} },
		"tables": func(c *abi.Consumer) { c.Tables[0].Columns[0].Scale = 3 },
	} {
		c := declaration()
		change(c)
		require.Equal(t, []string{name}, parts(host.Fingerprint(c, false, "sha256:00", nil)))
	}
	c := declaration()
	c.Inputs[0].Types = []string{"paid", "placed"}
	c.Tables[1].Child = nil
	require.Empty(t, parts(host.Fingerprint(c, false, "sha256:00", nil)), "types are a set, and a child key is a hint")
	require.Equal(t, []string{"logic"}, parts(host.Fingerprint(declaration(), false, "sha256:01", nil)))
	require.Equal(t, []string{"logic"}, parts(host.Fingerprint(declaration(), false, "sha256:00", []byte("{}"))))
	require.Equal(t, []string{"keys"}, parts(host.Fingerprint(declaration(), true, "sha256:00", nil)))

	// Where the guest tells keys, its code is part of them.
	c.Inputs[1].Key = abi.KeyRule{Kind: abi.KeyFunction}
	one, other := host.Fingerprint(c, false, "sha256:00", nil), host.Fingerprint(c, false, "sha256:01", nil)
	require.NotEqual(t, one.Keys, other.Keys)
}
