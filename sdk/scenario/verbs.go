package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Verbs are the verbs that an executor knows.
type Verbs map[string]verb

// verb is the shape of a statement.
type verb struct {
	usage    string
	args     []string          // usage of each: the allowed words with | between, or a name in capitals
	optional int               // how many of the last args may be missing
	repeated bool              // the last of args may be there again
	options  map[string]string // usage of the value by key; a key that ends in : is a prefix
	any      bool              // any option is allowed
}

// NewVerbs returns the verbs of usage lines:
//
//	zone NAME lost|back            an argument; one of these words
//	restart [NAME]                 an argument that may be missing
//	remove NAME…                   one or more
//	drain SERVICE [grace=DURATION] an option; all are optional
//	pod NAME [ready=true|false]    an option that has one of these values
//	pod NAME [label:KEY=VALUE]     options that begin with label:
//	open [NAME=NUMBER…]            any option
//
// It panics if a usage line has another form.
func NewVerbs(usages ...string) Verbs {
	vs := Verbs{}
	for _, usage := range usages {
		words := strings.Fields(usage)
		if len(words) == 0 || !isVerb(words[0]) || vs[words[0]].usage != "" {
			panic("usage without a verb, or with one twice: " + usage)
		}
		v := verb{usage: usage, options: map[string]string{}}
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
func (vs Verbs) Check(f *File) error {
	for i := range f.Statements {
		s := &f.Statements[i]
		v, ok := vs[s.Verb]
		if !ok {
			return fmt.Errorf("%s:%d: unknown verb %s: want one of %s", f.Name, s.Line, s.Verb, strings.Join(vs.Names(), ", "))
		}
		if err := v.check(s); err != nil {
			return fmt.Errorf("%s:%d: %s: %w (usage: %s)", f.Name, s.Line, s.Verb, err, v.usage)
		}
	}
	return nil
}

// Names returns the verbs, sorted.
func (vs Verbs) Names() []string { return slices.Sorted(maps.Keys(vs)) }

// Usage returns the usage line of a verb, "" if it is unknown.
func (vs Verbs) Usage(name string) string { return vs[name].usage }

func (v verb) check(s *Statement) error {
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

// checkWord returns an error if usage lists the words that are allowed, and word is none of them.
func checkWord(usage, word string) error {
	allowed := strings.Split(usage, "|")
	isName := func(s string) bool { return strings.ToUpper(s) == s }
	if len(allowed) < 2 || slices.ContainsFunc(allowed, isName) || slices.Contains(allowed, word) {
		return nil
	}
	return fmt.Errorf("%q: want %s", word, strings.Join(allowed, " or "))
}
