package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Verbs are the verbs of scenarios that change a T.
type Verbs[T any] map[string]verb[T]

// Verb is a verb: its usage line, and what executes a statement.
type Verb[T any] struct {
	Usage string
	Do    func(T, *Statement) error
}

// verb is a Verb and the shape of its statements.
type verb[T any] struct {
	Verb[T]
	args     []string          // usage of each: the allowed words with | between, or a name in capitals
	optional int               // how many of the last args may be missing
	repeated bool              // the last of args may be there again
	options  map[string]string // usage of the value by key; a key that ends in : is a prefix
	any      bool              // any option is allowed
}

// NewVerbs returns verbs with usage lines:
//
//	zone NAME lost|back            an argument; one of these words
//	restart [NAME]                 an argument that may be missing
//	remove NAME…                   one or more
//	drain SERVICE [grace=DURATION] an option; all are optional
//	pod NAME [ready=true|false]    an option that has one of these values
//	pod NAME [label:KEY=VALUE]     options that begin with label:
//	open [NAME=NUMBER…]            any option
//
// A DURATION has the syntax of ParseDuration and is at most MaxDuration.
// It panics if a usage line has another form.
func NewVerbs[T any](verbs ...Verb[T]) Verbs[T] {
	vs := Verbs[T]{}
	for _, one := range verbs {
		usage := one.Usage
		words := strings.Fields(usage)
		if len(words) == 0 || !isVerb(words[0]) || vs[words[0]].Usage != "" {
			panic("usage without a verb, or with one twice: " + usage)
		}
		v := verb[T]{Verb: one, options: map[string]string{}}
		for _, w := range words[1:] {
			inner := strings.TrimSuffix(strings.TrimPrefix(w, "["), "]")
			key, value, option := strings.Cut(inner, "=")
			switch optional := inner != w; {
			case option && optional && strings.HasSuffix(inner, "…"):
				v.any = true
			case option && optional:
				if prefix, ok := strings.CutSuffix(key, ":KEY"); ok {
					key = prefix + ":"
				}
				v.options[key] = value
			case option, v.repeated, v.optional > 0 && !optional:
				panic("usage: " + usage)
			default:
				name := strings.TrimSuffix(inner, "…")
				v.repeated = name != inner
				v.args = append(v.args, name)
				if optional {
					v.optional++
				}
			}
		}
		vs[words[0]] = v
	}
	return vs
}

// Check returns an error about the first statement that has another form than its verb allows.
func (vs Verbs[T]) Check(f *File) error {
	for i := range f.Statements {
		s := &f.Statements[i]
		v, ok := vs[s.Verb]
		if !ok {
			return fmt.Errorf("%s:%d: unknown verb %s: want one of %s", f.Name, s.Line, s.Verb, strings.Join(vs.Names(), ", "))
		}
		if err := v.check(s); err != nil {
			return fmt.Errorf("%s:%d: %s: %w (usage: %s)", f.Name, s.Line, s.Verb, err, v.Usage)
		}
	}
	return nil
}

// Run executes the statements of a file that Check accepts, each at its time, after what is due then. Errors name file and line.
func (vs Verbs[T]) Run(f *File, c *Clock, on T) error {
	for i := range f.Statements {
		s := &f.Statements[i]
		if err := c.Advance(s.At); err != nil {
			return f.Errorf(s, "%w", err)
		}
		if err := vs[s.Verb].Do(on, s); err != nil {
			return f.Errorf(s, "%w", err)
		}
	}
	return nil
}

// Names returns the verbs, sorted.
func (vs Verbs[T]) Names() []string { return slices.Sorted(maps.Keys(vs)) }

// Usage returns the usage line of a verb, "" if it is unknown.
func (vs Verbs[T]) Usage(name string) string { return vs[name].Usage }

func (v verb[T]) check(s *Statement) error {
	switch n := len(s.Args); {
	case n < len(v.args)-v.optional:
		return fmt.Errorf("%s is missing", v.args[n])
	case n > len(v.args) && !v.repeated:
		return fmt.Errorf("unexpected argument %q", s.Args[len(v.args)])
	}
	for i, arg := range s.Args {
		if err := checkWord(v.args[min(i, len(v.args)-1)], arg); err != nil {
			return err
		}
	}
	for _, o := range s.Options {
		prefix, name, _ := strings.Cut(o.Key, ":")
		usage, known := v.options[o.Key]
		_, prefixed := v.options[prefix+":"]
		if known = known && !strings.HasSuffix(o.Key, ":"); !v.any && !known && !(prefixed && name != "") {
			return fmt.Errorf("unknown option %s=", o.Key)
		}
		if err := checkWord(usage, o.Value); err != nil {
			return fmt.Errorf("%s: %w", o.Key, err)
		}
	}
	return nil
}

// checkWord returns an error if usage is DURATION or lists the words that are allowed, and word is none of them.
func checkWord(usage, word string) error {
	if usage == "DURATION" {
		d, err := ParseDuration(word)
		if err == nil && d > MaxDuration {
			err = fmt.Errorf("%s: more than %s", d, MaxDuration)
		}
		return err
	}
	allowed := strings.Split(usage, "|")
	isName := func(s string) bool { return strings.ToUpper(s) == s }
	if len(allowed) < 2 || slices.ContainsFunc(allowed, isName) || slices.Contains(allowed, word) {
		return nil
	}
	return fmt.Errorf("%q: want %s", word, strings.Join(allowed, " or "))
}
