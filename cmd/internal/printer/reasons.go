package printer

import (
	"fmt"
	"io"
	"strconv"
)

// A reason of manyAlike endpoints or more is printed once, below the table, and not with each of them, unless it is as short as
// "ready".
const (
	manyAlike = 4
	shortText = 16 // bytes
)

// reasons are why endpoints have their weights. What many endpoints have has a number in the table.
type reasons struct {
	endpoints map[string]int // by text
	numbers   map[string]int
	numbered  []string
}

func newReasons(texts []string) *reasons {
	r := &reasons{endpoints: map[string]int{}, numbers: map[string]int{}}
	for _, t := range texts {
		r.endpoints[t]++
	}
	for _, t := range texts {
		if r.endpoints[t] >= manyAlike && len(t) > shortText && r.numbers[t] == 0 {
			r.numbered = append(r.numbered, t)
			r.numbers[t] = len(r.numbered)
		}
	}
	return r
}

// cell is the text of the table.
func (r *reasons) cell(text string) string {
	if n := r.numbers[text]; n > 0 {
		return "(" + strconv.Itoa(n) + ")"
	}
	return text
}

// print prints the reasons that have a number.
func (r *reasons) print(w io.Writer) {
	for i, t := range r.numbered {
		fmt.Fprintf(w, "  (%d) %d endpoints: %s\n", i+1, r.endpoints[t], t)
	}
}
