package json_test

import (
	"fmt"

	"github.com/projhost/projhost/sdk/go/json"
)

func Example() {
	event := json.Parse([]byte(`{"order":"A-7","lines":[{"sku":"tea","n":2},{"sku":"mug","n":1}]}`))

	order, err := event.Get("order").Text()
	if err != nil {
		fmt.Println(err)
		return
	}
	var pieces int64
	for line := range event.Get("lines").Values() {
		n, err := line.Get("n").Int()
		if err != nil {
			fmt.Println(err)
			return
		}
		pieces += n
	}

	var w json.Writer
	w.BeginObject()
	w.Name("order").String(order)
	w.Name("pieces").Int(pieces)
	w.EndObject()
	fmt.Println(string(w.Bytes()))
	// Output: {"order":"A-7","pieces":3}
}

func ExampleValue_Members() {
	v := json.ParseString(`{"from":"A-1","to":"A-2","amount":"12.50"}`)
	m := v.Members()
	for m.Next() {
		switch m.Name() {
		case "from", "to":
			fmt.Println(m.Name(), m.Value().Str())
		}
	}
	fmt.Println(m.Err())
	// Output:
	// from A-1
	// to A-2
	// <nil>
}
