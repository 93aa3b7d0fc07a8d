package fast

import (
	"strconv"
	"strings"
	"testing"
)

var (
	sinkBool  bool
	sinkIndex int
)

func BenchmarkEqual(b *testing.B) {
	for _, n := range []int{3, 7, 11, 20, 60} {
		s := strings.Repeat("x", n)
		t := strings.Clone(s)
		b.Run("fast/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sinkBool = Equal(s, t)
			}
		})
		b.Run("runtime/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sinkBool = s == t
			}
		})
	}
}

func BenchmarkStringEnd(b *testing.B) {
	for _, n := range []int{3, 7, 11, 20, 60} {
		s := strings.Repeat("x", n) + `":"`
		b.Run("fast/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sinkIndex = StringEnd(s, 0)
			}
		})
		b.Run("loop/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				i := 0
				for i < len(s) && s[i] != '"' && s[i] != '\\' {
					i++
				}
				sinkIndex = i
			}
		})
	}
}

func BenchmarkPlain(b *testing.B) {
	for _, n := range []int{3, 7, 11, 20, 60} {
		s := strings.Repeat("x", n)
		b.Run("fast/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				sinkBool = Plain(s)
			}
		})
	}
}
