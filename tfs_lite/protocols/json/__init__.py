"""JSON and msgpack bodies: text to trees and arrays, and back."""
