// Package flagrange defines flags that are numbers or durations in a range. A value outside of it, and one that is not a number,
// is an error of the command line.
package flagrange

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// value implements pflag.Value. NaN is in no range.
type value[T cmp.Ordered] struct {
	into        *T
	least, most T
	kind        string
	parse       func(string) (T, error)
}

// Set implements pflag.Value.
func (v *value[T]) Set(s string) error {
	n, err := v.parse(s)
	if err != nil || !(n >= v.least && n <= v.most) {
		return fmt.Errorf("want %s to %s", text(v.least), text(v.most))
	}
	*v.into = n
	return nil
}

// String implements pflag.Value. Zero is not shown as a default.
func (v *value[T]) String() string {
	if v.into == nil || cmp.Compare(*v.into, *new(T)) == 0 {
		return "0"
	}
	return text(*v.into)
}

func text(n any) string {
	if f, ok := n.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(n)
}

// Type implements pflag.Value: the name in the help.
func (v *value[T]) Type() string { return v.kind }

// InRange marks a value of this package.
func (v *value[T]) InRange() {}

func add[T cmp.Ordered](f *pflag.FlagSet, v *value[T], name, short string, byDefault T, usage string) {
	*v.into = byDefault
	f.VarP(v, name, short, usage)
}

// Float defines a flag that is a number from least to most.
func Float(f *pflag.FlagSet, into *float64, name string, byDefault, least, most float64, usage string) {
	add(f, &value[float64]{into, least, most, "float", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }}, name, "", byDefault, usage)
}

// Int64 defines a flag that is an integer from least to most.
func Int64(f *pflag.FlagSet, into *int64, name string, byDefault, least, most int64, usage string) {
	add(f, &value[int64]{into, least, most, "int", func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }}, name, "", byDefault, usage)
}

// Int is like Int64. short is the letter of the flag, "" for none.
func Int(f *pflag.FlagSet, into *int, name, short string, byDefault, least, most int, usage string) {
	add(f, &value[int]{into, least, most, "int", func(s string) (int, error) { n, err := strconv.ParseInt(s, 0, 0); return int(n), err }}, name, short, byDefault, usage)
}

// Duration defines a flag that is a duration from least to most.
func Duration(f *pflag.FlagSet, into *time.Duration, name string, byDefault, least, most time.Duration, usage string) {
	add(f, &value[time.Duration]{into, least, most, "duration", time.ParseDuration}, name, "", byDefault, usage)
}
