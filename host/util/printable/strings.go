package printable

import "reflect"

// Strings returns a copy of a value in which Escape was applied to every string in exported fields, elements and map keys.
// Pointers, slices and maps are copied; the value must not be recursive.
func Strings[T any](v T) T {
	escapeStrings(reflect.ValueOf(&v).Elem())
	return v
}

// escapeStrings changes v. What v refers to may be shared and is copied first.
func escapeStrings(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(Escape(v.String()))
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				escapeStrings(f)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			escapeStrings(v.Index(i))
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		all := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(all, v)
		for i := range all.Len() {
			escapeStrings(all.Index(i))
		}
		v.Set(all)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		to := reflect.New(v.Elem().Type())
		to.Elem().Set(v.Elem())
		escapeStrings(to.Elem())
		if v.Kind() == reflect.Interface {
			to = to.Elem()
		}
		v.Set(to)
	case reflect.Map:
		if v.IsNil() {
			return
		}
		all := reflect.MakeMap(v.Type())
		for entries := v.MapRange(); entries.Next(); {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			key.Set(entries.Key())
			value.Set(entries.Value())
			escapeStrings(key)
			escapeStrings(value)
			all.SetMapIndex(key, value)
		}
		v.Set(all)
	}
}
