package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store"
)

// FingerprintVersion names what goes into the hashes of [Fingerprint]. Another
// version is another fingerprint of the same declaration.
const FingerprintVersion = 1

// Fingerprint is what a consumer's declaration is stored and compared by. A
// module that differs in logic alone takes over where the other stood; one that
// differs in the rest does not.
//
//   - inputs: the topic, aggregate types and types of each input, in order
//   - keys: the key rule and keys_version of each input, and whether the consumer
//     is single-owner; with a rule "function" the module's digest too, since its
//     code decides which partition a message belongs to
//   - tables: names, parents, free, and the columns with their kinds, sizes,
//     indexes, defaults and sources, in order; not the declared child key, which
//     only tells what to read ahead
//   - logic: the digest and the plugin's config
func Fingerprint(c *abi.Consumer, singleOwner bool, digest string, config []byte) store.Fingerprint {
	type input struct {
		Topic          string   `json:"topic"`
		AggregateTypes []string `json:"aggregate_types"`
		Types          []string `json:"types"`
	}
	type key struct {
		Kind        abi.KeyKind `json:"kind"`
		Pointers    []string    `json:"pointers"`
		KeysVersion int         `json:"keys_version"`
		Digest      string      `json:"digest,omitempty"`
	}
	var inputs []input
	var keys []key
	for i := range c.Inputs {
		in := &c.Inputs[i]
		// Which types are asked for matters, not in which order.
		inputs = append(inputs, input{in.Topic, slices.Sorted(slices.Values(in.AggregateTypes)), slices.Sorted(slices.Values(in.Types))})
		k := key{Kind: in.Key.Kind, Pointers: in.Key.Pointers, KeysVersion: in.KeysVersion}
		if in.Key.Kind == abi.KeyFunction {
			k.Digest = digest
		}
		keys = append(keys, k)
	}
	tables := slices.Clone(c.Tables)
	for i := range tables {
		tables[i].Child = nil
	}
	return store.Fingerprint{
		Version: FingerprintVersion,
		Inputs:  hash(inputs),
		Keys:    hash(struct{ Keys, SingleOwner any }{keys, singleOwner}),
		Tables:  hash(tables),
		Logic:   hash(struct{ Digest, Config string }{digest, string(config)}),
	}
}

func hash(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("host: a declaration that cannot be written as JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
