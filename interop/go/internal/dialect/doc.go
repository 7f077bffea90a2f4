// Package dialect hides in which version of protoactor-go a binary was built, so that one source serves both.
package dialect
