package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// evens is a text of even numbers, separated by commas; each odd one is an error.
type evens []string

func (e *evens) UnmarshalText(text []byte) error {
	var errs []error
	for s := range strings.SplitSeq(string(text), ",") {
		if strings.ContainsAny(s, "13579") {
			errs = append(errs, fmt.Errorf("%q is odd", s))
		}
		*e = append(*e, s)
	}
	return errors.Join(errs...)
}

// third refuses the third item of a list.
type third []int

func (l *third) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	return FieldError{Path: "[2]", Err: errors.New("there is a third")}
}

type section struct {
	N int           `json:"n" default:"7"`
	D time.Duration `json:"d" default:"2s"`
}

type written struct {
	section
	Text  string    `json:"text" default:"word"`
	Off   string    `json:"off" default:"on" empty:"true"`
	List  []string  `json:"list" default:"[\"a\"]"`
	Sub   section   `json:"sub"`
	Maybe *section  `json:"maybe"`
	Not   section   `json:"not,omitzero"`
	Must  string    `json:"must" required:"a reason"`
	Evens evens     `json:"evens"`
	Third third     `json:"third"`
	Subs  []section `json:"subs"`
	Free  map[string]string
}

func TestFormsFollowTheirTags(t *testing.T) {
	form := Form{MaxReported: 50, Text: map[reflect.Type]func(string) (any, error){reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		if err != nil {
			return nil, fmt.Errorf("%q is no time", s)
		}
		return int64(d), nil
	}}}
	of := section{7, 2 * time.Second}
	defaults := written{section: of, Text: "word", Off: "on", List: []string{"a"}, Sub: of, Must: "x"}
	with := func(change func(w *written)) written { w := defaults; change(&w); return w }
	for name, c := range map[string]struct {
		text string
		want written
		errs string
	}{
		"nothing but what is required": {`{"must":"x"}`, defaults, ""},
		"null and empty values":        {`{"must":"x","text":"","list":[],"sub":null,"subs":[],"n":null,"maybe":null}`, defaults, ""},
		"an empty text that counts":    {`{"must":"x","off":""}`, with(func(w *written) { w.Off = "" }), ""},
		"zero is a value":              {`{"must":"x","n":0,"sub":{"d":"0s"}}`, with(func(w *written) { w.N, w.Sub.D = 0, 0 }), ""},
		"optional sections":            {`{"must":"x","maybe":{},"not":{"n":1}}`, with(func(w *written) { w.Maybe, w.Not = &section{7, 2 * time.Second}, section{1, 2 * time.Second} }), ""},
		"items of lists":               {`{"must":"x","subs":[{},{"d":"1s"}]}`, with(func(w *written) { w.Subs = []section{of, {7, time.Second}} }), ""},
		"values of the wrong type":     {`{"must":"x","n":"a","d":3,"text":[],"sub":5}`, defaults, "d: 3 is not a string (quote it)\nn: \"a\" is not an integer\nsub: 5 is not an object\ntext: a list is not a string (quote it)"},
		"texts that are refused":       {`{"must":"x","d":"soon","evens":"2,3,4,5"}`, defaults, "d: \"soon\" is no time\nevens: \"3\" is odd\nevens: \"5\" is odd"},
		"a part that is refused":       {`{"must":"x","third":[1,2,3]}`, defaults, "third[2]: there is a third"},
		"what is missing":              {`{"must":""}`, with(func(w *written) { w.Must = "" }), "must: required: a reason"},
		"an unknown field":             {`{"must":"x","txt":"a"}`, defaults, "txt: unknown field (did you mean \"text\"?)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, wrong := DecodeForm[written]([]byte(c.text), form)
			var errs []string
			for _, e := range wrong.Reported {
				errs = append(errs, e.Error())
			}
			if all := strings.Join(errs, "\n"); all != c.errs {
				t.Errorf("errors\n%s\nwant\n%s", all, c.errs)
			}
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got\n%+v\nwant\n%+v", *got, c.want)
			}
		})
	}
}
