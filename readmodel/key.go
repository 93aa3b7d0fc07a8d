package readmodel

import (
	"errors"

	"github.com/projhost/projhost/abi"
)

// KeyMax is the length limit of keys, child keys and names, in code points.
const KeyMax = abi.MaxKeyRunes

// CheckKey tells whether every engine can hold the key and tell it from every
// other: valid UTF-8 of 1 to 255 code points, without U+0000, not ending in a
// space (some engines take "a" and "a " for equal).
func CheckKey(key string) error {
	err := abi.CheckKey(key)
	if m := (*abi.MalformedError)(nil); errors.As(err, &m) {
		return errors.New(m.Reason)
	}
	return err
}
