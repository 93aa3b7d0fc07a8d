package readmodel

import (
	"errors"
	"unicode/utf8"
)

// KeyMax is the length limit of keys, child keys and names, in code points.
const KeyMax = 255

// What CheckKey answers. They are fixed so that a check on the way of every
// message makes no garbage.
var (
	errKeyEmpty = errors.New("a key cannot be empty")
	errKeyLong  = errors.New("a key has at most 255 characters")
	errKeyUTF8  = errors.New("a key is valid UTF-8")
	errKeyNUL   = errors.New("a key cannot contain the character U+0000")
	errKeySpace = errors.New("a key cannot end in a space")
)

// CheckKey tells whether every engine can hold the key and tell it from every
// other: valid UTF-8 of 1 to 255 code points, without U+0000, not ending in a
// space (some engines take "a" and "a " for equal).
func CheckKey(key string) error {
	if key == "" {
		return errKeyEmpty
	}
	if key[len(key)-1] == ' ' {
		return errKeySpace
	}
	if len(key) > KeyMax*utf8.UTFMax {
		return errKeyLong
	}
	for i := 0; i < len(key); i++ {
		if c := key[i]; c >= utf8.RuneSelf {
			return checkWideKey(key)
		} else if c == 0 {
			return errKeyNUL
		}
	}
	if len(key) > KeyMax {
		return errKeyLong
	}
	return nil
}

func checkWideKey(key string) error {
	n := 0
	for _, r := range key {
		if r == 0 {
			return errKeyNUL
		}
		n++
	}
	switch {
	case !utf8.ValidString(key):
		return errKeyUTF8
	case n > KeyMax:
		return errKeyLong
	}
	return nil
}
